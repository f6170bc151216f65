"""RAINFUSION_ATTN: block-sparse attention over a video's rows on Ascend. It changes results. Not run on hardware.

Blocks of 128 keys are pooled and ranked for each block of queries, and the best are attended. Rows before the video and its
first frame stay dense, so the sparsity that is reached is below the one that is asked for. Whatever it cannot treat is dense,
with FLASH_ATTN, and a line in the log says why.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from omnireel.attention.backend import ANY_LAYER, AttentionBackend, Capabilities, LayerFacts, Place
from omnireel.attention.backends import flash_attn
from omnireel.attention.flash import FlashKernel, flash_attention
from omnireel.attention.metadata import AttentionMetadata

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

BLOCK = 128
MIN_BLOCKS = 32
LAYOUT = "BSND"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the sparse kernel is told: rows before the video, rows that are used, and the video's grid."""

    prefix_len: int
    used_len: int
    latent_grid: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class RainFusion(AttentionBackend):
    """See the file. Without options it is dense. `kernel` and `dense` are there once it is bound."""

    name = "RAINFUSION_ATTN"
    can = Capabilities(
        platforms=("npu",),
        head_dims=(64, 96, 128, 192, 256),
        dtypes=(torch.bfloat16, torch.float16),
        has_documents=True,
        reads_video=True,
        is_traceable=False,
        is_run_on_hardware=False,
    )
    package = "mindiesd"
    install = "install mindiesd from https://gitcode.com/Ascend/MindIE-SD"
    sparsity: float = 0.0
    start_step: int = 0
    skip_layers: frozenset[int] = frozenset()
    kernel: Any = None
    dense: FlashKernel | None = None

    def bind(self, place: Place, options: Mapping[str, Any] | None) -> RainFusion:
        """With Ascend's kernels, sparse and dense."""
        options = options or {}
        return replace(
            self,
            sparsity=options.get("sparsity", 0.0),
            start_step=options.get("start_step", 0),
            skip_layers=frozenset(options.get("skip_layers", ())),
            kernel=importlib.import_module("mindiesd").sparse_attention,
            dense=flash_attn.ascend_kernel(),
        )

    def check_layer(self, layer: LayerFacts) -> None:
        """Raises ValueError for causal layers, and for a declared layout that is another."""
        if self.sparsity == 0:
            return
        if layer.causal:
            raise ValueError(f"{self.name} is not causal, and {layer.role} is")
        if layer.layout not in (None, LAYOUT):
            raise ValueError(f"{self.name} takes the layout {LAYOUT}, {layer.role} has {layer.layout}")

    def plan(self, layer: LayerFacts, metadata: AttentionMetadata | None) -> Plan | str:
        """The plan of a call, or why it is dense. All of it is known on the host."""
        reason = self._exempt(layer, metadata)
        if reason or metadata is None or metadata.video is None:
            return reason
        video, rows = metadata.video, metadata.video.num_video_rows
        if not metadata.cu_seqlens:
            return "the length of its first document is not told"
        first = metadata.cu_seqlens[1]
        if video.used_len != first:
            return f"the video ends at row {video.used_len}, its document at {first}"
        if rows < MIN_BLOCKS * BLOCK:
            return f"its {rows} video rows are fewer than {MIN_BLOCKS} blocks of {BLOCK}"
        if rows % BLOCK:
            return f"its {rows} video rows are no multiple of {BLOCK}"
        return Plan(prefix_len=video.prefix_len, used_len=video.used_len, latent_grid=video.latent_grid)

    def _exempt(self, layer: LayerFacts, metadata: AttentionMetadata | None) -> str:
        """Why the call is dense whatever its rows are; "" when it need not be."""
        if self.sparsity == 0:
            return "the sparsity is 0"
        if layer.index is not None and layer.index in self.skip_layers:
            return "layers in skip_layers are exempt"
        if metadata is not None and metadata.step is not None and metadata.step < self.start_step:
            return f"steps before {self.start_step} are exempt"
        if layer.layout is None:
            return "the layout of q, k and v is not declared"
        if metadata is None:
            return "nothing is known of the sequence"
        return "" if metadata.video is not None else "the video's place is not told"

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
        """As the contract says; rows behind the video are exactly zero where it is sparse."""
        assert self.dense is not None
        plan = self.plan(layer, metadata)
        if isinstance(plan, str):
            self._tell_once(layer, plan, q_BSHD.shape[1])
            return flash_attention(self.dense, q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=causal, metadata=metadata)
        used = plan.used_len
        grid = list(plan.latent_grid)
        made: Tensor = self.kernel(
            *(x[:, :used] for x in (q_BSHD, k_BSHD, v_BSHD)),
            scale=scale,
            head_num=q_BSHD.shape[2],
            input_layout=LAYOUT,
            inner_precise=0,
            sparse_type="rf_v2",
            txt_len=plan.prefix_len,
            block_size=BLOCK,
            latent_shape_q=grid,
            latent_shape_k=grid,
            sparsity=self.sparsity,
        )
        if used == q_BSHD.shape[1]:
            return made
        out_BSHD = torch.zeros_like(q_BSHD)
        out_BSHD[:, :used] = made
        return out_BSHD

    def _tell_once(self, layer: LayerFacts, reason: str, rows: int) -> None:
        key = f"{layer.role}: {reason}"
        if key not in self.said:
            self.said.add(key)
            logger.info("attention %s: dense over %d rows, for %s", layer.role, rows, reason)


BACKEND: AttentionBackend = RainFusion()
