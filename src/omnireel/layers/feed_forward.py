"""The gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from omnireel.layers.linear import Linear


class _Gated(nn.Module):
    """value * SiLU(gate) of one fused projection; its first half is the value."""

    def __init__(self, dim: int, hidden_dim: int, *, bias: bool) -> None:
        super().__init__()
        self.proj = Linear(dim, 2 * hidden_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        fused: Tensor = self.proj(x)
        value, gate = fused.chunk(2, dim=-1)
        return value * F.silu(gate, inplace=True)


class SwiGlu(nn.Module):
    """W2 (value * SiLU(gate)) with [value; gate] = W1 x.

    Weights are named as in diffusers checkpoints: `net.0.proj` and `net.2`; place 1 was a dropout there.
    """

    def __init__(self, dim: int, hidden_dim: int, *, bias: bool = False) -> None:
        super().__init__()
        gated = _Gated(dim, hidden_dim, bias=bias)
        self.net = nn.Sequential(gated, nn.Identity(), Linear(hidden_dim, dim, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] to the same shape and type."""
        out: Tensor = self.net(x)
        return out
