"""The gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor, nn

from omnireel.layers.kernels import PLAIN, Kernels
from omnireel.layers.linear import Linear


class _Gated(nn.Module):
    """value * SiLU(gate) of one fused projection; its first half is the value."""

    def __init__(self, dim: int, hidden_dim: int, *, bias: bool) -> None:
        super().__init__()
        self.proj = Linear(dim, 2 * hidden_dim, bias=bias)

    def forward(self, x: Tensor, kernels: Kernels) -> Tensor:
        return kernels.swiglu(self.proj(x))


class SwiGlu(nn.Module):
    """W2 (value * SiLU(gate)) with [value; gate] = W1 x.

    Weights are named as in diffusers checkpoints: `net.0.proj` and `net.2`; place 1 was a dropout there.
    """

    def __init__(self, dim: int, hidden_dim: int, *, bias: bool = False) -> None:
        super().__init__()
        gated = _Gated(dim, hidden_dim, bias=bias)
        self.net = nn.Sequential(gated, nn.Identity(), Linear(hidden_dim, dim, bias=bias))

    def forward(self, x: Tensor, kernels: Kernels = PLAIN) -> Tensor:
        """[..., dim] to the same shape and type."""
        gated, _, down = self.net
        out: Tensor = down(gated(x, kernels))
        return out
