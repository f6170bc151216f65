"""The recipe inside a file: written as JSON into the comment of an MP4 and read back."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from omnireel.errors import MediaUnreadable
from omnireel.media.inspect import open_container
from omnireel.request import Recipe

if TYPE_CHECKING:
    from pathlib import Path

COMMENT = "comment"
"""The one text tag of MP4 that every tool keeps."""

_MARK = "omnireel_recipe"
_NO_RECIPE_HINT = "clips made with --no-recipe, and copies made by other programs, have none"


def recipe_to_json(recipe: Recipe) -> str:
    """The recipe as one line of ASCII, inside an object that says what it is."""
    return json.dumps({_MARK: asdict(recipe)}, sort_keys=True, separators=(",", ":"))


def recipe_from_json(text: str, *, name: str) -> Recipe:
    """The inverse of `recipe_to_json`.

    Raises:
        MediaUnreadable: the text is no recipe, or one of a later version.
    """
    try:
        data: Any = json.loads(text)[_MARK]
    except (ValueError, KeyError, TypeError):
        raise MediaUnreadable(name, "has no recipe", hint=_NO_RECIPE_HINT) from None
    known = {item.name for item in fields(Recipe)}
    if not isinstance(data, dict) or data.keys() != known:
        raise MediaUnreadable(name, "has a recipe of another version", hint="use the version that made the clip")
    media = data["media"]
    if not isinstance(media, list) or not all(
        isinstance(item, dict) and {"kind", "role"} <= item.keys() for item in media
    ):
        raise MediaUnreadable(name, "has a damaged recipe")
    return Recipe(**{**data, "media": tuple(media)})


def read_recipe(path: Path) -> Recipe:
    """The recipe that a clip carries.

    Raises:
        MediaUnreadable: the file is missing, no clip, or has no recipe.
    """
    if not path.is_file():
        raise MediaUnreadable(str(path), "is not a file" if path.exists() else "does not exist")
    with open_container(path, name=str(path)) as container:
        text = container.metadata.get(COMMENT, "")
    return recipe_from_json(text, name=str(path))
