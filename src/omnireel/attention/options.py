"""What some backends can be told beside their name, as plain data; no torch here. All of it changes results, so none is on
unless somebody asks for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SAGE_DTYPES = ("float16", "bfloat16", "int8", "fp8_e4m3")
SAGE_BLOCKS = (1, 4, 16)

_ITEM = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


def selected(written: Any) -> frozenset[int]:
    """The numbers that "0, 2-4,7" names; a collection of integers names itself, None and "" nothing.

    Raises:
        ValueError: a number is negative, a range runs backwards, or an item is no number.
        TypeError: it is neither text nor a collection of integers.
    """
    if written is None:
        return frozenset()
    if isinstance(written, str):
        items = [item.strip() for item in written.split(",")] if written.strip() else []
        return frozenset(number for item in items for number in _range(item))
    if not isinstance(written, list | tuple | set | frozenset):
        raise TypeError(f'numbers are written as "0, 2-4" or listed, not as {type(written).__name__}')
    return frozenset(_number(item) for item in written)


def _range(item: str) -> Iterable[int]:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ValueError(f"{item!r} is neither a number from 0 on nor a range such as 2-4")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"the range {item!r} runs backwards")
    return range(first, last + 1)


def _number(item: Any) -> int:
    if isinstance(item, bool) or not isinstance(item, int) or item < 0:
        raise ValueError(f"{item!r} is no whole number from 0 on")
    return item


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipSoftmaxSpec:
    """Leaves out blocks whose weight would be below a threshold: one of `threshold` (times the longest sequence) or
    `target_sparsity` (through the checkpoint's calibration). While progress, which falls from 1 to 0, is above
    `disabled_until_timestep`, nothing is left out.
    """

    threshold: float | None = None
    target_sparsity: float | None = None
    disabled_until_timestep: float = 0.0

    def __post_init__(self) -> None:
        if self.threshold is not None and self.target_sparsity is not None:
            raise ValueError("skip_softmax takes threshold or target_sparsity, not both")
        _check_number("skip_softmax.threshold", self.threshold, math.inf)
        _check_number("skip_softmax.target_sparsity", self.target_sparsity, 1)
        _check_number("skip_softmax.disabled_until_timestep", self.disabled_until_timestep, 1)

    @property
    def enabled(self) -> bool:
        """Whether one of the two is set."""
        return self.threshold is not None or self.target_sparsity is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttnQuantSpec:
    """Attention in low precision: types of q and k, and of v; rows that share a scale. `flashinfer_backend` names its kernels."""

    dtype_qk: str | None = None
    dtype_vo: str | None = None
    q_block_size: int = 1
    k_block_size: int = 16
    flashinfer_backend: str | None = None

    def __post_init__(self) -> None:
        for name in ("dtype_qk", "dtype_vo"):
            value = getattr(self, name)
            if value is not None and value not in SAGE_DTYPES:
                raise ValueError(f"quant.{name} = {value!r} is none of {', '.join(SAGE_DTYPES)}")
        for name in ("q_block_size", "k_block_size"):
            if getattr(self, name) not in SAGE_BLOCKS:
                raise ValueError(
                    f"quant.{name} = {getattr(self, name)!r} is none of {', '.join(map(str, SAGE_BLOCKS))}"
                )
        if self.flashinfer_backend is not None and not isinstance(self.flashinfer_backend, str):
            raise ValueError("quant.flashinfer_backend must be a name")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSparseSpec:
    """Attends only the best blocks of a video's keys. `sparsity`: the share that is left out; `start_step`: the first step that
    may leave out any; `skip_layers`: layers that never do, written as `selected` reads them.
    """

    sparsity: float = 0.8
    start_step: int = 0
    skip_layers: Any = None

    def __post_init__(self) -> None:
        _check_number("block_sparse.sparsity", self.sparsity, 1)
        if isinstance(self.start_step, bool) or not isinstance(self.start_step, int) or self.start_step < 0:
            raise ValueError(f"block_sparse.start_step = {self.start_step!r} is no whole number from 0 on")
        object.__setattr__(self, "skip_layers", selected(self.skip_layers))


def _check_number(name: str, value: Any, most: float) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 <= value <= most:
        limits = "from 0 on" if most == math.inf else f"from 0 to {most:g}"
        raise ValueError(f"{name} = {value!r} is no number {limits}")
