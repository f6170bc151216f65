"""What somebody wrote, before it is a value: names made canonical, sections opened, pieces of one mapping put together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omnireel.config.groups import SECTIONS, members, names
from omnireel.config.sources import Source
from omnireel.config.values import truth

_STAGE_NAME = re.compile(r"stage_(\d+)_(.+)")
SourceOf = Callable[[tuple[str, ...]], Source]
"""The place of a value by the keys that lead to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One value that was written somewhere. `shown` is the name as it was written, `name` the setting's own.

    name: "" where no setting is called that.
    """

    name: str
    shown: str
    value: Any
    source: Source


def said(written: Mapping[str, Any], source_of: SourceOf) -> Iterator[Said]:
    """Each value of a mapping by name, a section's values one by one as "section.name"."""
    for key, value in written.items():
        shown = str(key).replace("-", "_")
        if shown in SECTIONS and isinstance(value, Mapping):
            for inner, item in value.items():
                yield _said(f"{shown}.{inner}".replace("-", "_"), str(inner), item, source_of((key, inner)))
        else:
            yield _said(shown, shown, value, source_of((key,)))


def split_stages(flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Flags of all, and flags of one stage (`stage_0_dtype`) by its number and their bare name."""
    known = names()
    wide: dict[str, Any] = {}
    staged: dict[int, dict[str, Any]] = {}
    for name, value in flags.items():
        match = None if name in known else _STAGE_NAME.fullmatch(name)
        if match is None:
            wide[name] = value
        else:
            staged.setdefault(int(match[1]), {})[match[2]] = value
    return wide, staged


def put_together(pieces: list[str]) -> Any:
    """One mapping of the pieces of a dotted flag: JSON objects as they are, and ".path.to=TEXT" for one value of them.

    A later piece wins over an earlier one. What is no JSON object is given back, for `convert` to refuse.
    """
    whole: dict[str, Any] = {}
    for piece in pieces:
        if piece.startswith("."):
            path, _, text = piece.partition("=")
            found: Any = text
            for key in reversed(path[1:].split(".")):
                found = {key.replace("-", "_"): found}
        else:
            found = _json(piece)
            if not isinstance(found, dict):
                return piece
        _merge(whole, found)
    return whole


def typed(value: Any) -> Any:
    """A mapping whose texts are read as JSON where they are JSON: 0.2 is a number, TORCH_SDPA a text."""
    if isinstance(value, Mapping):
        return {key: typed(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    found = _json(value)
    return value if found is _NO_JSON else found


_NO_JSON = object()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _NO_JSON


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _said(shown: str, key: str, value: Any, source: Source) -> Said:
    section, dot, _ = shown.partition(".")
    name, is_opposite = names().get(key.replace("-", "_"), ("", False))
    if dot and name not in members(section):
        name = ""
    if is_opposite:
        is_on = truth(value)
        value = value if is_on is None else not is_on
    return Said(name=name, shown=shown, value=value, source=source)
