"""The attention config that a mapping spells, or a sentence saying what is wrong with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from omnireel.attention.options import AttnQuantSpec, BlockSparseSpec, SkipSoftmaxSpec
from omnireel.attention.spec import AttentionConfig, AttentionSpec
from omnireel.errors import nearest

_OPTIONS: Mapping[str, type[Any]] = {
    "skip_softmax": SkipSoftmaxSpec, "quant": AttnQuantSpec, "block_sparse": BlockSparseSpec,
}  # fmt: skip
_WORDS = ("dtype_qk", "dtype_vo", "flashinfer_backend", "skip_layers")
"""Fields of options that are text; a dotted flag writes the numbers of all others as text too."""
_SPEC_KEYS = ("backend", *_OPTIONS)


def attention_config(written: Mapping[str, Any]) -> AttentionConfig:
    """`default` and `per_role`; a text stands for {"backend": text}, and roles may be nested or dotted.

    Raises:
        ValueError: saying what is allowed instead.
    """
    unknown = sorted(set(written) - {"default", "per_role"})
    if unknown:
        raise ValueError(f"its keys are default and per_role, not {', '.join(unknown)}")
    default, per_role = written.get("default"), written.get("per_role") or {}
    if not isinstance(per_role, Mapping):
        raise ValueError("per_role must be an object of roles")
    return AttentionConfig(
        default=None if default is None else _spec("default", default), per_role=dict(_roles("", per_role))
    )


def _roles(prefix: str, written: Mapping[str, Any]) -> Iterator[tuple[str, AttentionSpec]]:
    for key, value in written.items():
        role = f"{prefix}{key}"
        if not isinstance(value, Mapping) or any(name in _SPEC_KEYS for name in value):
            yield role, _spec(f"per_role.{role}", value)
        elif not value:
            raise ValueError(f"per_role.{role} is empty; it must name a backend")
        else:
            yield from _roles(f"{role}.", value)


def _spec(where: str, value: Any) -> AttentionSpec:
    if isinstance(value, str):
        return AttentionSpec(backend=value)
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{where} must name a backend, or be an object with the key backend")
    other = sorted(set(value) - set(_SPEC_KEYS))
    if other:
        close = nearest(str(other[0]), _SPEC_KEYS)
        meant = f"; did you mean {close} by {other[0]}?" if close else ""
        names = ", ".join(map(str, other))
        raise ValueError(f"{where} has {names}, and its keys are {', '.join(_SPEC_KEYS)}{meant}")
    if not isinstance(value.get("backend"), str):
        raise ValueError(f"{where}.backend must be the name of a backend")
    options = {name: _option(f"{where}.{name}", kind, value[name]) for name, kind in _OPTIONS.items() if name in value}
    try:
        return AttentionSpec(backend=value["backend"], **options)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _option(where: str, kind: type[Any], value: Any) -> Any:
    """An option's spec; None stays unset."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be an object")
    known = [item.name for item in fields(kind)]
    other = sorted(map(str, set(value) - set(known)))
    if other:
        raise ValueError(f"{where} has the keys {', '.join(other)}; known are {', '.join(known)}")
    try:
        return kind(**{name: item if name in _WORDS else _number(item) for name, item in value.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _number(value: Any) -> Any:
    """The number that a text spells; everything else as it is."""
    for kind in (int, float) if isinstance(value, str) else ():
        with contextlib.suppress(ValueError):
            return kind(value)
    return value
