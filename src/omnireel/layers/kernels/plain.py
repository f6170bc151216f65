"""The reference's operations in the reference's order: on float32 the same bits, and what every other spelling is held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn import functional as F

from omnireel.layers.modulation import gate_, modulate_
from omnireel.layers.rotary import rotate_

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.layers.kernels.contract import Kernels
    from omnireel.layers.modulation import TableRows
    from omnireel.layers.norm import RMSNorm
    from omnireel.layers.rotary import RotaryTable


@dataclass(frozen=True, slots=True)
class Plain:
    """See `Kernels`."""

    name: str = "plain"

    def norm_modulate(
        self, x_BSH: Tensor, norm: RMSNorm, scale_RH: Tensor, shift_RH: Tensor, rows: TableRows
    ) -> Tensor:
        """See `Kernels`."""
        return modulate_(norm(x_BSH), scale_RH, shift_RH, rows.segments)

    def gate_add_(self, x_BSH: Tensor, y_BSH: Tensor, gate_RH: Tensor, rows: TableRows) -> None:
        """See `Kernels`."""
        x_BSH.add_(gate_(y_BSH, gate_RH, rows.segments))

    def gate_add_norm_modulate_(
        self,
        x_BSH: Tensor,
        y_BSH: Tensor,
        gate_RH: Tensor,
        norm: RMSNorm,
        scale_RH: Tensor,
        shift_RH: Tensor,
        rows: TableRows,
    ) -> Tensor:
        """See `Kernels`."""
        self.gate_add_(x_BSH, y_BSH, gate_RH, rows)
        return self.norm_modulate(x_BSH, norm, scale_RH, shift_RH, rows)

    def norm_rotate(self, x_BSAD: Tensor, norm: RMSNorm, table: RotaryTable | None) -> Tensor:
        """See `Kernels`."""
        normed: Tensor = norm(x_BSAD)
        return normed if table is None else rotate_(normed, table)

    def scale_add_norm_(self, x_BSH: Tensor, y_BSH: Tensor, scale_H: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        """See `Kernels`."""
        x_BSH.add_(y_BSH * scale_H)
        return F.rms_norm(x_BSH, (x_BSH.shape[-1],), weight_H, eps).to(y_BSH.dtype)

    def swiglu(self, fused: Tensor) -> Tensor:
        """See `Kernels`."""
        value, gate = fused.chunk(2, dim=-1)
        return value * F.silu(gate, inplace=True)


PLAIN: Kernels = Plain()
