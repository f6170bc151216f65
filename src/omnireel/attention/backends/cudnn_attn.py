"""CUDNN_ATTN: cuDNN's fused attention through torch, and nothing else: where cuDNN cannot, the call fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from omnireel.attention.backend import ANY_LAYER, AttentionBackend, Capabilities, LayerFacts, Place
from omnireel.attention.backends import torch_sdpa

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.attention.metadata import AttentionMetadata

# Head sizes are those of cuDNN's forward kernel; 9.5 is the first version that serving engines choose by themselves.
_HEAD_DIMS = tuple(range(8, 257, 8))
_MIN_CUDNN = 90500


@dataclass(frozen=True, kw_only=True)
class CudnnAttention(AttentionBackend):
    """Fused attention for half-precision inputs on NVIDIA cards."""

    name = "CUDNN_ATTN"
    can = Capabilities(
        platforms=("cuda",), head_dims=_HEAD_DIMS, dtypes=(torch.bfloat16, torch.float16), masks="any", has_spans=False
    )

    def available(self, place: Place) -> str | None:
        """Why this build of torch has no fit cuDNN, or None."""
        version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        if version is None:
            return "this build of torch has no cuDNN"
        if version < _MIN_CUDNN:
            return f"it needs cuDNN {_MIN_CUDNN}, this build of torch has {version}"
        return None

    def forward(
        self,
        q_BSHD: Tensor,
        k_BSHD: Tensor,
        v_BSHD: Tensor,
        *,
        scale: float,
        causal: bool,
        metadata: AttentionMetadata,
        layer: LayerFacts = ANY_LAYER,
    ) -> Tensor:
        """As the contract says. cuDNN has no kernel for a single key; torch's plain arithmetic is as quick there."""
        with sdpa_kernel(SDPBackend.MATH if k_BSHD.shape[1] == 1 else SDPBackend.CUDNN_ATTENTION):
            return torch_sdpa.BACKEND.forward(q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=causal, metadata=metadata)


BACKEND: AttentionBackend = CudnnAttention()
