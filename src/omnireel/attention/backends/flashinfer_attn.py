"""FLASHINFER_ATTN: FlashInfer's kernels for packed sequences. Not run on hardware."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from omnireel.attention.backend import ANY_LAYER, AttentionBackend, Capabilities, LayerFacts, Place
from omnireel.attention.metadata import AttentionMetadata, by_document

if TYPE_CHECKING:
    from torch import Tensor

WORKSPACE_BYTES = 128 * 2**20
"""What FlashInfer's documentation allocates for its scratch memory."""

_KEPT_PLANS = 16
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}

Bounds = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class FlashInferAttention(AttentionBackend):
    """See the file. `kernels`: flashinfer, once it is bound; `variant`: of its kernels; `types`: of q and k, and of v.

    Planning a call is work on the host, so plans are kept: a request asks for the same one in every layer of every step. They
    share one workspace, for the calls of one role follow each other.
    """

    name = "FLASHINFER_ATTN"
    can = Capabilities(
        platforms=("cuda",),
        head_dims=(64, 128, 256),
        dtypes=(torch.bfloat16, torch.float16),
        masks="any",
        has_documents=True,
        is_traceable=False,
        is_run_on_hardware=False,
    )
    package = "flashinfer"
    install = "pip install flashinfer-python"
    kernels: Any = None
    variant: str = "fa2"
    types: tuple[torch.dtype | None, torch.dtype | None] = (None, None)
    plans: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    workspaces: dict[torch.device, Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    def bind(self, place: Place, options: Mapping[str, Any] | None) -> FlashInferAttention:
        """With the kernels of the card's generation.

        Raises:
            ValueError: the options ask for a type that it has no kernels for.
        """
        options = options or {}
        wanted = options.get("dtype_qk"), options.get("dtype_vo")
        if wanted[0] not in (None, "float16", "bfloat16") or wanted[1] not in (None, *_DTYPES):
            raise ValueError("its q and k may be float16 or bfloat16, its v float16, bfloat16 or fp8_e4m3")
        variant = "cute-dsl" if place.major >= 10 else "fa3" if place.major == 9 else "fa2"
        types = tuple(None if name is None else _DTYPES[name] for name in wanted)
        return replace(
            self,
            kernels=importlib.import_module("flashinfer"),
            variant=options.get("flashinfer_backend", variant),
            types=(types[0], types[1]),
        )

    def describe(self) -> str:
        """The name and the kernels."""
        return self.name if self.kernels is None else f"{self.name} ({self.variant})"

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
        """As the contract says; the whole batch is one packed sequence.

        Raises:
            ValueError: a mask comes with causal attention, or to kernels without masks.
        """
        if metadata.mask is not None and causal:
            raise ValueError(f"{self.name} is causal or takes a mask, not both")
        if metadata.mask is not None and metadata.mask.dtype is not torch.bool:
            raise ValueError(f"{self.name} takes boolean masks, not {metadata.mask.dtype}")
        run = partial(self._run, scale, causal)
        if metadata.mask is not None or metadata.valid_kv_length is not None or not metadata.is_packed:
            return by_document(partial(_each, run), q_BSHD, k_BSHD, v_BSHD, metadata)
        metadata.check_covers(q_BSHD.shape[1], k_BSHD.shape[1])
        bounds = metadata.cu_seqlens, metadata.key_bounds
        made = [run(q, k, v, bounds, None) for q, k, v in zip(q_BSHD, k_BSHD, v_BSHD, strict=True)]
        return torch.stack(made)

    def _run(
        self,
        scale: float,
        causal: bool,
        q_NHD: Tensor,
        k_NHD: Tensor,
        v_NHD: Tensor,
        bounds: tuple[Bounds, Bounds],
        mask: Tensor | None,
    ) -> Tensor:
        to_qk, to_vo = self.types
        out_type = q_NHD.dtype
        q_NHD, k_NHD, v_NHD = q_NHD.to(to_qk or out_type), k_NHD.to(to_qk or out_type), v_NHD.to(to_vo or out_type)
        shape = q_NHD.shape[1], k_NHD.shape[1], q_NHD.shape[2]
        types = q_NHD.dtype, v_NHD.dtype, out_type
        key = bounds, shape, scale, causal, types, q_NHD.device
        plan = self.plans.get(key) if mask is None else None
        if plan is None:
            plan = self._plan(bounds, shape, scale=scale, causal=causal, types=types, device=q_NHD.device, mask=mask)
            if mask is None:
                while len(self.plans) >= _KEPT_PLANS:
                    del self.plans[next(iter(self.plans))]
                self.plans[key] = plan
        made: Tensor = plan.run(q_NHD, k_NHD, v_NHD)
        return made

    def _plan(
        self,
        bounds: tuple[Bounds, Bounds],
        shape: tuple[int, int, int],
        *,
        scale: float,
        causal: bool,
        types: tuple[torch.dtype, torch.dtype, torch.dtype],
        device: torch.device,
        mask: Tensor | None,
    ) -> Any:
        # Its CuTe kernels have no custom masks.
        variant = "fa2" if mask is not None and self.variant == "cute-dsl" else self.variant
        workspace = self.workspaces.get(device)
        if workspace is None:
            workspace = self.workspaces[device] = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        plan = self.kernels.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=variant)
        of_queries, of_keys = (torch.tensor(item, dtype=torch.int32) for item in bounds)
        heads, key_heads, head_dim = shape
        mixed = {} if types[0] == types[2] == types[1] else {"o_data_type": types[2]}
        plan.plan(
            of_queries,
            of_keys,
            heads,
            key_heads,
            head_dim,
            custom_mask=None if mask is None else mask.flatten(),
            causal=causal,
            sm_scale=scale,
            q_data_type=types[0],
            kv_data_type=types[1],
            **mixed,
        )
        return plan


def _each(run: Any, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, /, mask: Tensor | None = None) -> Tensor:
    """One document, sample by sample; a mask of keys is the same for every query."""
    bounds = (0, q_BSHD.shape[1]), (0, k_BSHD.shape[1])
    rows = []
    for index in range(len(q_BSHD)):
        own = None if mask is None else _square(mask, index, bounds[0][1], bounds[1][1], q_BSHD.device)
        rows.append(run(q_BSHD[index], k_BSHD[index], v_BSHD[index], bounds, own))
    return torch.stack(rows)


def _square(mask: Tensor, index: int, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    if mask.dim() == 2:
        return mask[index].to(device).expand(num_queries, num_keys)
    if mask.dim() == 4 and mask.shape[1] == 1:
        return mask[min(index, len(mask) - 1), 0].to(device).expand(num_queries, num_keys)
    raise ValueError(f"FLASHINFER_ATTN takes masks [B,Sk] or [B,1,Sq,Sk], got {tuple(mask.shape)}")


BACKEND: AttentionBackend = FlashInferAttention()
