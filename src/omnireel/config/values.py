"""A dataclass field as a setting, and the one place where text becomes a value of a field's type.

Flags, environment variables and Python keywords all pass `convert`, so a number means the same wherever it was written.
"""

from __future__ import annotations

import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of a spec. `kind` is the type without its None; `is_optional` says that None is a value too."""

    name: str
    kind: type
    is_optional: bool
    default: Any
    help: str
    unit: str
    choices: tuple[str, ...]
    metavar: str
    minimum: float | None
    maximum: float | None
    above: float | None
    aliases: tuple[str, ...]
    stages: tuple[str, ...] | None
    pending: str
    idle: tuple[Any, ...]
    is_secret: bool

    def told(self, value: object) -> object:
        """The value as it may be shown and written down."""
        return "***" if self.is_secret and value is not None else value

    def is_idle(self, value: object) -> bool:
        """Whether `value` says no more than what happens while the setting is pending."""
        return any(value == other and type(value) is type(other) for other in (self.default, *self.idle))

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """What may be written, as the second half of an error line."""
        if self.choices:
            return f"it must be {' or '.join(self.choices)}"
        at_least = "" if self.minimum is None else f", at least {self.minimum:g}"
        at_least += "" if self.above is None else f", above {self.above:g}"
        at_most = "" if self.maximum is None else f", at most {self.maximum:g}"
        return f"it must be {_ALLOWED[self.kind]}{at_least}{at_most}"


@cache
def settings_of(spec: type) -> tuple[Setting, ...]:
    """The settings of a dataclass whose fields were made with `request.setting`, in order of declaration."""
    hints = typing.get_type_hints(spec)
    return tuple(
        _setting(item.name, hints[item.name], item.default, item.metadata)
        for item in fields(spec)
        if "help" in item.metadata
    )


def convert(setting: Setting, value: object) -> Any:
    """`value`, as text or already typed, as the setting's type.

    Raises:
        ValueError: with what is allowed instead; the caller knows whose mistake it is and where it came from.
    """
    if value is None and setting.is_optional:
        return None
    result = _PARSERS[setting.kind](value)
    if result is None or (setting.choices and result not in setting.choices):
        raise ValueError(setting.allowed)
    if setting.minimum is not None and result < setting.minimum:
        raise ValueError(setting.allowed)
    if setting.maximum is not None and result > setting.maximum:
        raise ValueError(setting.allowed)
    if setting.above is not None and result <= setting.above:
        raise ValueError(setting.allowed)
    return result


def _setting(name: str, hint: Any, default: Any, metadata: Mapping[str, Any]) -> Setting:
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    parts = [part for part in typing.get_args(hint) if part is not type(None)] if is_union else [hint]
    kind = typing.get_origin(parts[0]) or parts[0]
    is_odd_list = kind is tuple and typing.get_args(parts[0]) != (str, ...)
    if len(parts) != 1 or kind not in _PARSERS or is_odd_list:
        raise TypeError(f"a setting cannot be of type {hint}: {name}")
    is_optional = is_union and type(None) in typing.get_args(hint)
    return Setting(name=name, kind=kind, is_optional=is_optional, default=default, **metadata)


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        return int(value) if _INTEGER.fullmatch(value.strip()) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    if isinstance(value, str) and "_" not in value:
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        # A whole number of hundreds of digits.
        return None


def truth(value: object) -> bool | None:
    """A switch as it may be written; None for anything else."""
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    if isinstance(value, Path):
        return str(value)
    return value if isinstance(value, str) else None


def _words(value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    is_list = isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
    return tuple(value) if is_list else None  # type: ignore[arg-type]


def _path(value: object) -> Path | None:
    return Path(value) if isinstance(value, str | Path) and str(value) else None


def _object(value: object) -> Mapping[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_refuse_constant)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


_PARSERS: Mapping[type, Callable[[object], Any]] = {
    int: _integer,
    float: _number,
    bool: truth,
    str: _text,
    Path: _path,
    Mapping: _object,
    tuple: _words,
}
_ALLOWED: Mapping[type, str] = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    Path: "a file name",
    Mapping: "a JSON object",
    tuple: "a list of words",
}
