"""Shift, scale and gate of a packed sequence, whose rows take their values from a small table.

A packed sequence is a few long runs of rows that share a table row. The runs are known to the host, so each is one slice:
no index is gathered and no tensor of the size of the sequence is made. Kernels that handle row after row read the index
instead. Letters: B batch, S rows, H hidden, R table rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowSegment:
    """Rows `start` to `stop` (exclusive) of the sequence, which take table row `row`."""

    start: int
    stop: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRows:
    """Which table row each row of the sequence takes, said twice: as runs for the host, and as int32 [S] where the rows are."""

    segments: tuple[RowSegment, ...]
    index: Tensor

    @classmethod
    def of(cls, row_S: Tensor, device: torch.device) -> TableRows:
        """From integers [S] on the CPU."""
        return cls(segments=row_segments(row_S), index=row_S.to(torch.int32).to(device))

    def cut(self, start: int, stop: int) -> TableRows:
        """Of rows `start` to `stop` (exclusive) alone, counted from there; the index is a view."""
        segments = (
            RowSegment(max(item.start, start) - start, min(item.stop, stop) - start, item.row) for item in self.segments
        )
        return TableRows(
            segments=tuple(item for item in segments if item.start < item.stop), index=self.index[start:stop]
        )


def row_segments(row_S: Tensor) -> tuple[RowSegment, ...]:
    """The runs of equal values in `row_S`, integers [S] on the CPU (on a device, reading them would wait for it)."""
    rows, counts = torch.unique_consecutive(row_S, return_counts=True)
    segments = []
    start = 0
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        segments.append(RowSegment(start, start + count, row))
        start += count
    return tuple(segments)


def modulate_(x_BSH: Tensor, scale_RH: Tensor, shift_RH: Tensor, segments: tuple[RowSegment, ...]) -> Tensor:
    """x * scale + shift in place, rounded after either; returns `x_BSH`. A scale of one leaves x: it holds the 1 +."""
    for segment in segments:
        x_BSH[:, segment.start : segment.stop].mul_(scale_RH[segment.row]).add_(shift_RH[segment.row])
    return x_BSH


def gate_(x_BSH: Tensor, gate_RH: Tensor, segments: tuple[RowSegment, ...]) -> Tensor:
    """x * gate in place; returns `x_BSH`."""
    for segment in segments:
        x_BSH[:, segment.start : segment.stop].mul_(gate_RH[segment.row])
    return x_BSH
