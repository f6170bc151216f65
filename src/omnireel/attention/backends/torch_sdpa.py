"""TORCH_SDPA: torch's own scaled dot product attention, on every device; torch picks the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from omnireel.attention.backend import ANY_LAYER, AttentionBackend, Capabilities, LayerFacts
from omnireel.attention.metadata import AttentionMetadata, by_document
from omnireel.attention.spans import piecewise

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TorchSdpa(AttentionBackend):
    """The reference that every other backend is measured against."""

    name = "TORCH_SDPA"
    can = Capabilities(masks="any", has_spans=True)

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
        """As the contract says."""
        kernel = partial(attend, scale=scale)
        if metadata.full_attn_spans is not None and metadata.mask is None:
            return piecewise(kernel, q_BSHD, k_BSHD, v_BSHD, metadata)
        return by_document(partial(kernel, causal=causal), q_BSHD, k_BSHD, v_BSHD, metadata)


def attend(
    q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, /, *, scale: float, causal: bool, mask: Tensor | None = None
) -> Tensor:
    """One document. A causal query i of Sq sees the first Sk - Sq + i + 1 keys; `mask`: as in `AttentionMetadata`."""
    q_BHSD, k_BHSD, v_BHSD = (x.transpose(1, 2) for x in (q_BSHD, k_BSHD, v_BSHD))
    is_grouped = q_BHSD.shape[1] != k_BHSD.shape[1]
    if mask is not None:
        mask = _dense(mask.to(q_BSHD.device, non_blocking=True), q_BSHD.shape[1])
    # Torch aligns causal rows to the upper left corner, and takes no mask beside.
    if causal and (mask is not None or q_BSHD.shape[1] != k_BSHD.shape[1]):
        lower = _lower_right(q_BSHD.shape[1], k_BSHD.shape[1], q_BSHD.device)
        mask, causal = lower if mask is None else mask & lower, False
    out_BHSD = scaled_dot_product_attention(
        q_BHSD, k_BHSD, v_BHSD, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=is_grouped
    )
    return out_BHSD.transpose(1, 2)


def _dense(mask: Tensor, num_queries: int) -> Tensor:
    if mask.dim() != 2:
        return mask
    wide = mask[:, None, None, :]
    # Ascend's kernels do not broadcast a mask over queries.
    return wide.expand(-1, -1, num_queries, -1) if mask.device.type == "npu" else wide


def _lower_right(num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)


BACKEND: AttentionBackend = TorchSdpa()
