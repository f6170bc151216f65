"""SAGE_ATTN: SageAttention, with queries and keys in 8 bits. It changes results. Not run on hardware."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from omnireel.attention.backend import ANY_LAYER, AttentionBackend, Capabilities, LayerFacts, Place
from omnireel.attention.metadata import AttentionMetadata, by_document

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SageAttention(AttentionBackend):
    """See the file. `kernel`: sageattn, once it is bound."""

    name = "SAGE_ATTN"
    can = Capabilities(
        platforms=("cuda",),
        capabilities=("8.0", "8.6", "8.9", "9.0", "12.0", "12.1"),
        head_dims=(32, 64, 96, 128, 160, 192, 224, 256),
        dtypes=(torch.bfloat16, torch.float16),
        is_traceable=False,
        is_run_on_hardware=False,
    )
    package = "sageattention"
    install = "pip install sageattention"
    kernel: Callable[..., Any] | None = None

    def bind(self, place: Place, options: Mapping[str, Any] | None) -> SageAttention:
        """With the package's own choice of kernel for the card."""
        return replace(self, kernel=importlib.import_module("sageattention").sageattn)

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
        assert self.kernel is not None
        document = partial(_document, self.kernel, scale, causal)
        return by_document(document, q_BSHD, k_BSHD, v_BSHD, metadata)


def _document(
    kernel: Callable[..., Any],
    scale: float,
    causal: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    mask: Tensor | None = None,
) -> Tensor:
    made: Tensor = kernel(q, k, v, tensor_layout="NHD", is_causal=causal, sm_scale=scale)
    return made


BACKEND: AttentionBackend = SageAttention()
