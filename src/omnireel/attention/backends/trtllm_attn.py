"""TRTLLM_ATTN: TensorRT-LLM's kernels for packed sequences, through FlashInfer, on datacenter Blackwell. Not run on hardware.

The kernel sees rows of all documents in one line [N,H,D] and their bounds. What pads the end is cut off before, and comes back
as zeros. Two options change results: low precision, and leaving out blocks of hardly any weight.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from omnireel.attention.backend import ANY_LAYER, AttentionBackend, Capabilities, LayerFacts, Place
from omnireel.attention.calibration import Calibration
from omnireel.attention.flash import longest, on_device
from omnireel.attention.metadata import AttentionMetadata

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

WORKSPACE_BYTES = 394 * 2**20
_KERNEL = "trtllm_ragged_attention_deepseek"
_QUANTIZE = "trtllm_sage_attention_quantize"
_QUANT_DTYPES: Mapping[str, tuple[torch.dtype, tuple[str, ...]]] = {
    "int8": (torch.int8, ("10.0",)),
    "fp8_e4m3": (torch.float8_e4m3fn, ("10.0", "10.3")),
}
"""By name, the type of q and k and the capabilities that have kernels for it."""

Bounds = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A call as the kernel wants it, all on the host. Rows from num_queries and num_keys on are left out."""

    q_bounds: Bounds
    k_bounds: Bounds
    num_queries: int
    num_keys: int

    @property
    def key_lengths(self) -> Bounds:
        """Of each document."""
        return tuple(stop - start for start, stop in pairwise(self.k_bounds))


def pack(metadata: AttentionMetadata, *, batch: int, num_queries: int, num_keys: int) -> Packed:
    """What of the flattened rows is attended. num_queries and num_keys: of one sample.

    Raises:
        ValueError: a mask comes without bounds, is not a prefix, does not end with a document, or the bounds do not cover all
            rows of q, k and v.
    """
    length = metadata.valid_kv_length
    if metadata.mask is not None and not metadata.is_packed:
        raise ValueError("TRTLLM_ATTN takes a mask only with packed metadata; give cu_seqlens, or choose TORCH_SDPA")
    if not metadata.is_packed:
        keys = num_keys if length is None else length
        q_bounds, k_bounds = _uniform(batch, num_queries), _uniform(batch, keys)
        return Packed(q_bounds=q_bounds, k_bounds=k_bounds, num_queries=batch * num_queries, num_keys=batch * keys)
    metadata.check_covers(num_queries, num_keys)
    if metadata.mask is not None:
        length = _prefix(metadata.mask, num_keys)
    q_bounds, k_bounds = _without_empty_tail(metadata.cu_seqlens, metadata.key_bounds)
    if length is not None:
        if batch != 1 or num_queries != num_keys:
            raise ValueError("a mask with packed metadata is for one sample whose queries are its keys")
        q_bounds, k_bounds = _cut(q_bounds, k_bounds, length)
    if batch > 1:
        q_bounds, k_bounds = _repeated(q_bounds, batch, num_queries), _repeated(k_bounds, batch, num_keys)
    return Packed(q_bounds=q_bounds, k_bounds=k_bounds, num_queries=q_bounds[-1], num_keys=k_bounds[-1])


def _uniform(batch: int, rows: int) -> Bounds:
    return tuple(index * rows for index in range(batch + 1))


def _repeated(bounds: Bounds, batch: int, rows: int) -> Bounds:
    return (0, *(index * rows + bound for index in range(batch) for bound in bounds[1:]))


def _without_empty_tail(q_bounds: Bounds, k_bounds: Bounds) -> tuple[Bounds, Bounds]:
    """Documents at the end that have neither queries nor keys are dropped while more than one is left."""
    while len(q_bounds) > 2 and q_bounds[-1] == q_bounds[-2] and k_bounds[-1] == k_bounds[-2]:
        q_bounds, k_bounds = q_bounds[:-1], k_bounds[:-1]
    return q_bounds, k_bounds


def _prefix(mask: Tensor, num_keys: int) -> int:
    """Rows before the first hidden one. A mask on the host is read without waiting for a device."""
    if mask.dim() != 2 or mask.shape[1] != num_keys:
        raise ValueError(f"TRTLLM_ATTN takes masks [B,Sk] of {num_keys} keys, got {tuple(mask.shape)}")
    host = mask.cpu().bool()
    length = int(host[0].sum())
    if not bool((host == (torch.arange(num_keys) < length)).all()):
        raise ValueError(
            "TRTLLM_ATTN takes prefix-valid masks alone: all True, then all False, the same for each sample"
        )
    return length


def _cut(q_bounds: Bounds, k_bounds: Bounds, length: int) -> tuple[Bounds, Bounds]:
    for index, (of_queries, of_keys) in enumerate(zip(q_bounds, k_bounds, strict=True)):
        if index and of_queries == of_keys == length:
            return q_bounds[: index + 1], k_bounds[: index + 1]
    raise ValueError(f"the mask ends at row {length}, where no document of both queries and keys does")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quant:
    """Low precision, once it was found that the kernels can."""

    dtype: torch.dtype
    q_block: int
    k_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Skip-softmax. One of threshold and factor is set: times the longest sequence, or as it is."""

    threshold: float | None
    factor: float | None
    gate: float
    calibration: Calibration | None


@dataclass(frozen=True, kw_only=True)
class TrtllmAttention(AttentionBackend):
    """See the file. `kernels`: flashinfer.prefill, once it is bound."""

    name = "TRTLLM_ATTN"
    can = Capabilities(
        platforms=("cuda",),
        capabilities=("10.0", "10.3"),
        head_dims=(128,),
        dtypes=(torch.bfloat16,),
        masks="prefix",
        has_documents=True,
        is_traceable=False,
        is_run_on_hardware=False,
    )
    package = "flashinfer"
    install = "pip install flashinfer-python"
    kernels: Any = None
    quant: Quant | None = None
    skip: Skip | None = None
    workspaces: dict[torch.device, Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    def bind(self, place: Place, options: Mapping[str, Any] | None) -> TrtllmAttention:
        """With FlashInfer's kernels and the options that they can honour.

        Raises:
            ImportError: this FlashInfer has no such kernel.
            ValueError: it has no kernel for an option.
        """
        kernels = importlib.import_module("flashinfer.prefill")
        if not hasattr(kernels, _KERNEL):
            raise ImportError(f"this flashinfer has no {_KERNEL}")
        options = options or {}
        return replace(self, kernels=kernels, quant=_quant(kernels, place, options), skip=_skip(options))

    @property
    def reads_metadata(self) -> bool:
        """Skipping that begins in the middle of the loop has to know where that is."""
        return self.skip is not None and self.skip.gate > 0

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
        """As the contract says; rows that are left out are exactly zero.

        Raises:
            ValueError: as `pack`.
        """
        batch, rows, keys = q_BSHD.shape[0], q_BSHD.shape[1], k_BSHD.shape[1]
        packed = pack(metadata, batch=batch, num_queries=rows, num_keys=keys)
        if not metadata.is_packed and packed.num_keys != batch * keys:
            k_BSHD, v_BSHD = (x[:, : packed.k_bounds[1]] for x in (k_BSHD, v_BSHD))
        q = q_BSHD.reshape(-1, *q_BSHD.shape[2:])[: packed.num_queries]
        k, v = (x.reshape(-1, *x.shape[2:])[: packed.num_keys] for x in (k_BSHD, v_BSHD))
        # Rows are cut before they are quantised, so that no block of one scale holds both rows that count and padding.
        tensors, extra = self._quantized((q, k, v), packed.key_lengths, layer)
        factor = self._skip_factor(longest(packed.k_bounds), metadata, layer)
        if factor is not None:
            extra["skip_softmax_threshold_scale_factor"] = factor
        out_NHD = getattr(self.kernels, _KERNEL)(
            query=tensors[0],
            key=tensors[1],
            value=tensors[2],
            workspace_buffer=self._workspace(q.device),
            seq_lens=on_device(packed.key_lengths, q.device),
            max_q_len=longest(packed.q_bounds),
            max_kv_len=longest(packed.k_bounds),
            bmm1_scale=scale,
            bmm2_scale=1.0,
            o_sf_scale=-1.0,
            batch_size=len(packed.k_bounds) - 1,
            window_left=-1,
            cum_seq_lens_q=on_device(packed.q_bounds, q.device),
            cum_seq_lens_kv=on_device(packed.k_bounds, q.device),
            enable_pdl=False,
            is_causal=causal,
            return_lse=False,
            **extra,
        )
        missing = batch * rows - len(out_NHD)
        if missing:
            out_NHD = torch.cat([out_NHD, out_NHD.new_zeros(missing, *out_NHD.shape[1:])])
        made: Tensor = out_NHD.view(q_BSHD.shape)
        return made

    def _workspace(self, device: torch.device) -> Tensor:
        """Of this role and device. The kernel wants zeros in it the first time, and leaves them."""
        if device not in self.workspaces:
            self.workspaces[device] = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self.workspaces[device]

    def _quantized(
        self, tensors: tuple[Tensor, Tensor, Tensor], key_lengths: Sequence[int], layer: LayerFacts
    ) -> tuple[Sequence[Tensor], dict[str, Any]]:
        quant = self.quant
        if quant is None:
            return tensors, {}
        if min(key_lengths) < quant.k_block:
            self._tell_once(
                f"short:{layer.role}", "attention %s: full precision where keys are fewer than a block", layer
            )
            return tensors, {}
        q, k, v, q_scale, k_scale, v_scale = getattr(self.kernels, _QUANTIZE)(
            *tensors, q_block_size=quant.q_block, k_block_size=quant.k_block, qk_quant_dtype=quant.dtype
        )
        scales = {
            "sage_attn_sfs": (q_scale, k_scale, None, v_scale),
            "num_elts_per_sage_attn_blk": (quant.q_block, quant.k_block, 0, 1),
        }
        return (q, k, v), scales

    def _skip_factor(self, max_keys: int, metadata: AttentionMetadata, layer: LayerFacts) -> float | None:
        skip = self.skip
        if skip is None or (skip.calibration is not None and skip.calibration.ignores(layer.name)):
            return None
        if skip.gate > 0:
            if metadata.progress is None:
                self._tell_once("progress", "attention %s: no softmax is skipped, for no step is told", layer)
                return None
            if metadata.progress > skip.gate:
                return None
        return skip.factor if skip.threshold is None else skip.threshold * max_keys

    def _tell_once(self, key: str, text: str, layer: LayerFacts) -> None:
        if key not in self.said:
            self.said.add(key)
            logger.warning(text, layer.role)


def _quant(kernels: Any, place: Place, options: Mapping[str, Any]) -> Quant | None:
    if "q_block_size" not in options:
        return None
    name, of_values = str(options.get("dtype_qk", "")), options.get("dtype_vo")
    if name not in _QUANT_DTYPES:
        raise ValueError(f"quant.dtype_qk must be {' or '.join(_QUANT_DTYPES)}, got {name!r}")
    if of_values not in (None, "fp8_e4m3"):
        raise ValueError(f"quant.dtype_vo is fp8_e4m3 always, got {of_values!r}")
    dtype, capabilities = _QUANT_DTYPES[name]
    if place.capability and place.capability not in capabilities:
        raise ValueError(
            f"quant.dtype_qk = {name} needs capability {' or '.join(capabilities)}, not {place.capability}"
        )
    has_scales = "sage_attn_sfs" in inspect.signature(getattr(kernels, _KERNEL)).parameters
    if not has_scales or not hasattr(kernels, _QUANTIZE):
        raise ValueError("low precision needs flashinfer 0.6.16rc1 or newer")
    return Quant(dtype=dtype, q_block=options["q_block_size"], k_block=options["k_block_size"])


def _skip(options: Mapping[str, Any]) -> Skip | None:
    threshold, sparsity = options.get("threshold"), options.get("target_sparsity")
    if threshold is None and sparsity is None:
        return None
    calibration: Calibration | None = options.get("calibration")
    if threshold is None and calibration is None:
        raise ValueError("skip_softmax.target_sparsity needs a calibrated checkpoint; give a threshold instead")
    factor = None
    if threshold is None and calibration is not None and sparsity is not None:
        factor = calibration.factor(sparsity)
    return Skip(threshold=threshold, factor=factor, gate=options["disabled_until_timestep"], calibration=calibration)


BACKEND: AttentionBackend = TrtllmAttention()
