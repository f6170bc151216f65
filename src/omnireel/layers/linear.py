"""The one linear layer: where tensor parallelism, quantisation and adapters meet."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ALIGNMENT_BYTES = 64
"""Where torch puts tensors of its own on a processor; a tensor in a mapped file may begin at any multiple of 8."""


def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear`, with the same bits wherever in memory the weight begins.

    Some processors round the product of a single row otherwise when vector loads do not reach the weight whole; for that
    one product the weight is copied to where they do.
    """
    is_astray = weight.device.type == "cpu" and x.shape[:-1].numel() == 1 and weight.data_ptr() % ALIGNMENT_BYTES
    return F.linear(x, weight.clone() if is_astray else weight, bias)


class Linear(nn.Module):
    """x W^T + b over the last dim. `weight` is [out, in] as in checkpoints; both tensors start unfilled."""

    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    @property
    def dtype(self) -> torch.dtype:
        """The type that inputs must have."""
        return self.weight.dtype

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], same type."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"{self.in_features} -> {self.out_features}, bias={self.bias is not None}"
