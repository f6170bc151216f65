"""What kernels between matrix products must do. Letters: B batch, S rows, H hidden, R table rows, A heads, D channels of a
head, F hidden of the feed-forward; tables may be strided, their last dim is dense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.layers.modulation import TableRows
    from omnireel.layers.norm import RMSNorm
    from omnireel.layers.rotary import RotaryTable


class Kernels(Protocol):
    """One spelling. Stateless; results are in the type of the stream."""

    @property
    def name(self) -> str:
        """In lower case, for logs and reports."""
        ...

    def norm_modulate(
        self, x_BSH: Tensor, norm: RMSNorm, scale_RH: Tensor, shift_RH: Tensor, rows: TableRows
    ) -> Tensor:
        """norm(x) * scale + shift, a new [B,S,H]; `scale_RH` holds the 1 +."""
        ...

    def gate_add_(self, x_BSH: Tensor, y_BSH: Tensor, gate_RH: Tensor, rows: TableRows) -> None:
        """x += y * gate. `y_BSH` may be written over."""
        ...

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
        """x += y * gate, then norm(x) * scale + shift as a new [B,S,H]. `y_BSH` may be written over."""
        ...

    def norm_rotate(self, x_BSAD: Tensor, norm: RMSNorm, table: RotaryTable | None) -> Tensor:
        """Each head normed, then turned by `table`. `x_BSAD` may be written over and may be a strided part of a fused
        projection; the result may be the same memory.
        """
        ...

    def scale_add_norm_(self, x_BSH: Tensor, y_BSH: Tensor, scale_H: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        """x += y * scale, then the RMS norm of x in the type of `y_BSH`, which may be narrower and may be written over."""
        ...

    def swiglu(self, fused: Tensor) -> Tensor:
        """value * SiLU(gate) of [..., 2F], value first, as [..., F]. `fused` may be written over."""
        ...
