"""The one attention layer of all models: projections and norms stay in the model, the kernel is a backend's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import nn

from omnireel.attention.metadata import ONE_DOCUMENT, AttentionMetadata

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.attention.backend import AttentionBackend


class Attention(nn.Module):
    """Softmax attention of `num_heads` heads over full sequences, scaled by 1 / sqrt(head_dim). Holds no weights.

    `role` names what the layer is for; settings, reports and sequence parallelism address layers by it.
    """

    def __init__(
        self, num_heads: int, head_dim: int, *, backend: AttentionBackend, role: str, causal: bool = False
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.backend = backend
        self.role = role
        self.causal = causal
        self.scale = 1.0 / math.sqrt(head_dim)

    def forward(
        self, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, metadata: AttentionMetadata | None = None
    ) -> Tensor:
        """[B,S,H,D] (batch, rows, heads, channels) in and out; no metadata means one document."""
        return self.backend.forward(
            q_BSHD, k_BSHD, v_BSHD, scale=self.scale, causal=self.causal, metadata=metadata or ONE_DOCUMENT
        )

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"{self.role}, {self.num_heads} x {self.head_dim}, {self.backend.name}"
