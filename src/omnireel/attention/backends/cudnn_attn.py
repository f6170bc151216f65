"""CUDNN_ATTN: cuDNN's fused attention through torch, and nothing else: where cuDNN cannot, the call fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from omnireel.attention.backends import torch_sdpa

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.attention.backend import AttentionBackend
    from omnireel.attention.metadata import AttentionMetadata

# Head sizes are those of cuDNN's forward kernel; 9.5 is the first version that serving engines choose by themselves.
_HEAD_DIMS = tuple(range(8, 257, 8))
_MIN_CUDNN = 90500


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnAttention:
    """Fused attention for half-precision inputs on NVIDIA cards."""

    name: str = "CUDNN_ATTN"
    platforms: tuple[str, ...] | None = ("cuda",)
    head_dims: tuple[int, ...] = _HEAD_DIMS
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
    package: str = ""

    def available(self) -> str | None:
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
    ) -> Tensor:
        """As the contract says."""
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch_sdpa.BACKEND.forward(q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=causal, metadata=metadata)


BACKEND: AttentionBackend = CudnnAttention()
