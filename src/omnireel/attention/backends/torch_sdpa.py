"""TORCH_SDPA: torch's own scaled dot product attention, on every device; torch picks the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn.functional import scaled_dot_product_attention

from omnireel.attention.metadata import AttentionMetadata, by_document

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from omnireel.attention.backend import AttentionBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSdpa:
    """The reference that every other backend is measured against."""

    name: str = "TORCH_SDPA"
    platforms: tuple[str, ...] | None = None
    head_dims: tuple[int, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    package: str = ""

    def available(self) -> str | None:
        """Always None."""
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

        def kernel(q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor) -> Tensor:
            q_BHSD, k_BHSD, v_BHSD = (x.transpose(1, 2) for x in (q_BSHD, k_BSHD, v_BSHD))
            out_BHSD = scaled_dot_product_attention(q_BHSD, k_BHSD, v_BHSD, is_causal=causal, scale=scale)
            return out_BHSD.transpose(1, 2)

        return by_document(kernel, q_BSHD, k_BSHD, v_BSHD, metadata)


BACKEND: AttentionBackend = TorchSdpa()
