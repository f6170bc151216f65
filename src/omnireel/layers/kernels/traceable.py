"""The same operations for a compiler: no loop over runs, for a graph that holds their bounds would be made again for every
layout, and nothing but the stream is changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from omnireel.layers.kernels.plain import Plain

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.layers.kernels.contract import Kernels
    from omnireel.layers.modulation import TableRows
    from omnireel.layers.norm import RMSNorm
    from omnireel.layers.rotary import RotaryTable


@dataclass(frozen=True, slots=True)
class Traceable(Plain):
    """See `Kernels`."""

    name: str = "traceable"

    def norm_modulate(
        self, x_BSH: Tensor, norm: RMSNorm, scale_RH: Tensor, shift_RH: Tensor, rows: TableRows
    ) -> Tensor:
        """See `Kernels`."""
        modulated: Tensor = norm(x_BSH) * scale_RH[rows.index] + shift_RH[rows.index]
        return modulated

    def gate_add_(self, x_BSH: Tensor, y_BSH: Tensor, gate_RH: Tensor, rows: TableRows) -> None:
        """See `Kernels`."""
        x_BSH.add_(y_BSH * gate_RH[rows.index])

    def norm_rotate(self, x_BSAD: Tensor, norm: RMSNorm, table: RotaryTable | None) -> Tensor:
        """See `Kernels`."""
        normed: Tensor = norm(x_BSAD)
        if table is None:
            return normed
        pairs = table.cos.shape[-1]
        first, second, rest = torch.split(normed, [pairs, pairs, normed.shape[-1] - 2 * pairs], dim=-1)
        turned = first * table.cos - second * table.sin, second * table.cos + first * table.sin
        return torch.cat([*turned, rest], dim=-1)

    def swiglu(self, fused: Tensor) -> Tensor:
        """See `Kernels`."""
        value, gate = fused.chunk(2, dim=-1)
        return value * F.silu(gate)


TRACEABLE: Kernels = Traceable()
