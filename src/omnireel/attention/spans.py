"""Mixed attention: rows are causal but for spans whose rows see each other both ways (a picture inside a text).

It is cut into pieces that a kernel knows: causal ones aligned to the lower right corner, and full ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from omnireel.attention.metadata import QueryRange

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.attention.metadata import AttentionMetadata


class CausalKernel(Protocol):
    """Attention of Sq rows to Sk keys; causal: query i sees keys up to Sk - Sq + i."""

    def __call__(self, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, /, *, causal: bool) -> Tensor:
        """[B,Sq,H,D]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows [start, stop) of the whole sequence see the first `num_keys` keys."""

    start: int
    stop: int
    num_keys: int
    is_causal: bool


def pieces(start: int, stop: int, spans: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """Query rows [start, stop) in order. Spans are half-open and must not overlap.

    Raises:
        ValueError: spans overlap or one is empty or runs backwards.
    """
    at = start
    for first, last in _ordered(spans):
        lower, upper = max(first, start), min(last, stop)
        if lower >= upper:
            continue
        if at < lower:
            yield Piece(start=at, stop=lower, num_keys=lower, is_causal=True)
        yield Piece(start=lower, stop=upper, num_keys=last, is_causal=False)
        at = upper
    if at < stop:
        yield Piece(start=at, stop=stop, num_keys=stop, is_causal=True)


def piecewise(
    kernel: CausalKernel, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, metadata: AttentionMetadata
) -> Tensor:
    """The same as attention with the mask `key <= query or both in one span`, without the mask.

    Raises:
        ValueError: the query ranges do not cover the local rows one after the other.
    """
    spans = metadata.full_attn_spans or ()
    parts = []
    for where in _ranges(metadata.query_ranges, q_BSHD.shape[1]):
        offset = where.local_start - where.global_start
        stop = where.global_start + where.local_end - where.local_start
        for piece in pieces(where.global_start, stop, spans):
            rows = slice(piece.start + offset, piece.stop + offset)
            keys = slice(0, piece.num_keys)
            parts.append(kernel(q_BSHD[:, rows], k_BSHD[:, keys], v_BSHD[:, keys], causal=piece.is_causal))
    return torch.cat(parts, dim=1)


def _ordered(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    ordered = sorted(spans)
    ends = [0, *(last for _, last in ordered)]
    if any(last <= first or first < end for (first, last), end in zip(ordered, ends, strict=False)):
        raise ValueError(f"spans must be half-open, not empty and apart, got {tuple(spans)}")
    return ordered


def _ranges(ranges: Sequence[QueryRange], num_rows: int) -> Iterator[QueryRange]:
    found = ranges or (QueryRange(local_start=0, local_end=num_rows, global_start=0),)
    at = 0
    for item in found:
        if item.local_start != at or item.local_end <= at:
            raise ValueError(f"query ranges must cover the local rows one after the other, row {at} is not next")
        at = item.local_end
        yield item
    if at != num_rows:
        raise ValueError(f"query ranges end at row {at}, the local rows at {num_rows}")
