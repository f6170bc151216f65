"""Sizes in a component's config, read into a dataclass whose defaults show what each value must be like."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")

_MORE_THAN_ANY_SIZE = 2**31


def read_sizes(kind: type[D], config: Mapping[str, Any], *, may_be_zero: Collection[str] = ()) -> D:
    """A `kind` with the values of a `config.json`; keys that begin with an underscore are passed over.

    A whole number must be positive or, of the fields in `may_be_zero`, not negative; other numbers must be positive. Numbers
    in a list may be anything finite where the defaults are not whole. A field whose default is None is not looked at.

    Raises:
        ValueError: a key is unknown or its value is not like the default; the text names it.
    """
    defaults = {entry.name: entry.default for entry in fields(kind)}
    named = {key: value for key, value in config.items() if not key.startswith("_")}
    unknown = named.keys() - defaults.keys()
    if unknown:
        raise ValueError(f"unknown {'key' if len(unknown) == 1 else 'keys'} {', '.join(sorted(unknown))}")
    return kind(
        **{key: _like(defaults[key], key, value, may_be_zero=key in may_be_zero) for key, value in named.items()}
    )


def _like(default: object, key: str, value: Any, *, may_be_zero: bool = False) -> Any:
    if default is None:
        return _tuples(value)
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{key} must be a list, got {value!r}")
        return tuple(_item(default[0], key, item) for item in value)
    if isinstance(default, str):
        if not isinstance(value, str):
            raise ValueError(f"{key} must be a text, got {value!r}")
        return value
    return _number(key, value, is_whole=isinstance(default, int), low=-1.0 if may_be_zero else 0.0)


def _item(default: object, key: str, value: Any) -> Any:
    if isinstance(default, float):
        return _number(key, value, is_whole=False, low=-math.inf)
    return _like(default, key, value)


def _number(key: str, value: Any, *, is_whole: bool, low: float) -> Any:
    is_like = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
    # A whole number of JSON may have any length, and torch's sizes and floats have not.
    if not is_like or not low < value < (_MORE_THAN_ANY_SIZE if is_whole or isinstance(value, int) else math.inf):
        limit = {0.0: "positive", -1.0: "not negative"}.get(low, "finite")
        raise ValueError(f"{key} must be a {limit} {'whole number' if is_whole else 'number'}, got {repr(value)[:40]}")
    return value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
