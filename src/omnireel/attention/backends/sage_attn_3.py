"""SAGE_ATTN_3: SageAttention 3, in 4 bits, on Blackwell. It changes results. Not run on hardware."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from omnireel.attention.backend import ANY_LAYER, AttentionBackend, Capabilities, LayerFacts, Place
from omnireel.attention.backends import torch_sdpa
from omnireel.attention.metadata import AttentionMetadata, by_document

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SageAttention3(AttentionBackend):
    """See the file. `kernel`: sageattn3_blackwell, once it is bound."""

    name = "SAGE_ATTN_3"
    can = Capabilities(
        platforms=("cuda",),
        capabilities=("10", "11", "12"),
        head_dims=(64, 128, 256),
        dtypes=(torch.bfloat16, torch.float16),
        is_traceable=False,
        is_run_on_hardware=False,
    )
    package = "sageattn3"
    install = "build sageattention3_blackwell of https://github.com/thu-ml/SageAttention"
    kernel: Callable[..., Any] | None = None

    def bind(self, place: Place, options: Mapping[str, Any] | None) -> SageAttention3:
        """With the package's one kernel."""
        return replace(self, kernel=importlib.import_module("sageattn3").sageattn3_blackwell)

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
        """As the contract says. Keys of fewer heads than queries go to TORCH_SDPA, for the kernel has no groups.

        Raises:
            ValueError: the scale is not 1 / sqrt(channels), which the kernel takes for granted.
        """
        assert self.kernel is not None
        if not math.isclose(scale, q_BSHD.shape[-1] ** -0.5, rel_tol=1e-6):
            raise ValueError(
                f"{self.name} scales by {q_BSHD.shape[-1] ** -0.5:.6g} always, {layer.role} by {scale:.6g}"
            )
        if k_BSHD.shape[2] != q_BSHD.shape[2]:
            if "grouped" not in self.said:
                self.said.add("grouped")
                logger.warning("attention %s: TORCH_SDPA, for %s has no grouped heads", layer.role, self.name)
            return torch_sdpa.BACKEND.forward(q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=causal, metadata=metadata)
        return by_document(partial(_document, self.kernel, causal), q_BSHD, k_BSHD, v_BSHD, metadata)


def _document(
    kernel: Callable[..., Any], causal: bool, q: Tensor, k: Tensor, v: Tensor, /, mask: Tensor | None = None
) -> Tensor:
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    made: Tensor = kernel(q, k, v, is_causal=causal)
    return made.transpose(1, 2)


BACKEND: AttentionBackend = SageAttention3()
