"""The recipe inside a file: written as JSON into the comment of an MP4 and read back."""

from __future__ import annotations

import json
import stat
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from omnireel.errors import MediaUnreadable
from omnireel.media.inspect import open_container, reason
from omnireel.request import Recipe

if TYPE_CHECKING:
    from pathlib import Path

COMMENT = "comment"
"""The one text tag of MP4 that every tool keeps."""

_MARK = "omnireel_recipe"
_CLIP_HINT = "give an MP4 that omnireel wrote"
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
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MediaUnreadable(name, "has no recipe", hint=_NO_RECIPE_HINT) from None
    known = {item.name for item in fields(Recipe)}
    if not isinstance(data, dict) or data.keys() != known:
        raise MediaUnreadable(name, "has a recipe of another version", hint="use the version that made the clip")
    if not _is_typed(data):
        raise MediaUnreadable(name, "has a damaged recipe", hint="take the clip as omnireel wrote it")
    return Recipe(**{**data, "media": tuple(data["media"])})


def read_recipe(path: Path) -> Recipe:
    """The recipe that a clip carries.

    Raises:
        MediaUnreadable: the file is missing, no clip, or has no recipe. A clip cut off behind its index still has one.
    """
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        raise MediaUnreadable(str(path), "does not exist", hint=_CLIP_HINT) from None
    except (OSError, ValueError) as error:
        words = reason(error) if isinstance(error, OSError) else str(error)
        raise MediaUnreadable(str(path), f"cannot be opened ({words})", hint=_CLIP_HINT) from None
    if not is_file:
        raise MediaUnreadable(str(path), "is not a file", hint=_CLIP_HINT)
    with open_container(path, name=str(path), hint=_CLIP_HINT) as container:
        text = container.metadata.get(COMMENT, "")
    return recipe_from_json(text, name=str(path))


def _is_typed(data: dict[str, Any]) -> bool:
    texts = ("model", "weights_digest", "prompt", "frames_digest", "wave_digest")
    tables = ("sampling", "engine", "versions")
    if not all(isinstance(data[name], str) for name in texts) or not all(
        isinstance(data[name], dict) for name in tables
    ):
        return False
    media = data["media"]
    return (
        all(isinstance(version, str) for version in data["versions"].values())
        and isinstance(media, list)
        and all(isinstance(item, dict) and {"kind", "role"} <= item.keys() for item in media)
    )
