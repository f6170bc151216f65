"""Rotary position over several axes: a table made once for a sequence, and turning heads by it in place.

Letters: B batch, S rows, A axes, F frequencies of an axis, H heads, D channels of a head, R = A * F turned pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryTable:
    """`cos` and `sin` of every row's angles, [S,1,R] in the type of the queries: they are rounded before use."""

    cos: Tensor
    sin: Tensor

    @property
    def num_rows(self) -> int:
        """Rows of the sequence that the table is for."""
        return self.cos.shape[0]

    def cut(self, start: int, stop: int) -> RotaryTable:
        """Of rows `start` to `stop` (exclusive) alone; views."""
        return RotaryTable(cos=self.cos[start:stop], sin=self.sin[start:stop])


def axial_rotary(position_SA: Tensor, *, num_frequencies: int, theta: float, dtype: torch.dtype) -> RotaryTable:
    """The table of positions on A axes that share the frequencies theta^(-k/F).

    Angles are float32 whatever `dtype` is; axis after axis makes up the R pairs. Frequencies are raised on the CPU, for
    a power on another device may differ in its last bit.
    """
    exponent_F = torch.arange(0, 2 * num_frequencies, 2, dtype=torch.float32, device="cpu") / (2 * num_frequencies)
    frequency_F = (1.0 / (theta**exponent_F)).to(position_SA.device)
    angle_SAF = position_SA.to(torch.float32).unsqueeze(-1) * frequency_F
    angle_S1R = angle_SAF.flatten(1).unsqueeze(1)
    return RotaryTable(cos=angle_S1R.cos().to(dtype), sin=angle_S1R.sin().to(dtype))


def rotate_(x_BSHD: Tensor, table: RotaryTable) -> Tensor:
    """Turns the first 2R channels of every head in place, as R pairs (i, R + i); the others stay. Returns `x_BSHD`."""
    num_pairs = table.cos.shape[-1]
    first = x_BSHD[..., :num_pairs]
    second = x_BSHD[..., num_pairs : 2 * num_pairs]
    turned = first * table.cos
    turned -= second * table.sin
    crossed = first * table.sin
    second *= table.cos
    second += crossed
    first.copy_(turned)
    return x_BSHD
