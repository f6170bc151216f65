"""Calling a FlashAttention kernel, whoever built it: their functions take and give the same, but for what is smoothed out here.

A kernel has up to two functions. Dense: (q, k, v, softmax_scale, causal), [B,S,H,D]. Varlen: rows of all documents in one
line [N,H,D] with their bounds. Either may give a tuple whose first item is the output. Causal rows are aligned to the lower
right corner.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from omnireel.attention.backend import ANY_LAYER, AttentionBackend, LayerFacts
from omnireel.attention.metadata import AttentionMetadata, by_document
from omnireel.attention.spans import piecewise


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashKernel:
    """A kernel's functions, of which at least one is there. `source`: the module that holds them, or where they come from."""

    source: str
    dense: Callable[..., Any] | None
    varlen: Callable[..., Any] | None
    is_module: bool = False
    """Whether `load_kernel(source)` finds it again, as a compiled graph does."""

    @classmethod
    def of(cls, source: str, module: Any, *, is_module: bool = False) -> FlashKernel:
        """Of a module that names them as everybody does.

        Raises:
            ImportError: it has neither.
        """
        dense, varlen = (getattr(module, name, None) for name in ("flash_attn_func", "flash_attn_varlen_func"))
        if dense is None and varlen is None:
            raise ImportError(f"{source} has neither flash_attn_func nor flash_attn_varlen_func")
        return cls(source=source, dense=dense, varlen=varlen, is_module=is_module)

    def whole(self, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, *, scale: float, causal: bool) -> Tensor:
        """Every sequence of the batch over all its rows."""
        if self.dense is not None:
            return _first(self.dense(q_BSHD, k_BSHD, v_BSHD, softmax_scale=scale, causal=causal))
        batch, rows, keys = q_BSHD.shape[0], q_BSHD.shape[1], k_BSHD.shape[1]
        q, k, v = (x.flatten(0, 1) for x in (q_BSHD, k_BSHD, v_BSHD))
        bounds = tuple(range(0, (batch + 1) * rows, rows)), tuple(range(0, (batch + 1) * keys, keys))
        return self.packed(q, k, v, bounds=bounds, scale=scale, causal=causal).view(q_BSHD.shape)

    def packed(
        self,
        q_NHD: Tensor,
        k_NHD: Tensor,
        v_NHD: Tensor,
        *,
        bounds: tuple[tuple[int, ...], tuple[int, ...]],
        scale: float,
        causal: bool,
    ) -> Tensor:
        """All documents at once. bounds: those of queries and of keys, on the host, so that nothing waits for the device."""
        assert self.varlen is not None, "the caller looks whether it is there"
        of_queries, of_keys = bounds
        return _first(
            self.varlen(
                q_NHD,
                k_NHD,
                v_NHD,
                cu_seqlens_q=on_device(of_queries, q_NHD.device),
                cu_seqlens_k=on_device(of_keys, q_NHD.device),
                max_seqlen_q=longest(of_queries),
                max_seqlen_k=longest(of_keys),
                softmax_scale=scale,
                causal=causal,
            )
        )


def _first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple | list) else output
    return found


def longest(bounds: Sequence[int]) -> int:
    """Rows of the longest document."""
    return max(stop - start for start, stop in pairwise(bounds))


@lru_cache(maxsize=64)
def on_device(bounds: tuple[int, ...], device: torch.device) -> Tensor:
    """int32 [n] on the device. Kept, for a request has the same bounds in every layer of every step."""
    return torch.tensor(bounds, dtype=torch.int32).to(device, non_blocking=True)


@lru_cache(maxsize=16)
def load_kernel(source: str) -> FlashKernel:
    """The kernel in a module. Raises what importing it raises."""
    return FlashKernel.of(source, importlib.import_module(source), is_module=True)


@torch.library.custom_op("omnireel::flash_attention", mutates_args=())
def _traced(q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, source: str, scale: float, causal: bool) -> Tensor:
    return load_kernel(source).whole(q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=causal).contiguous()


@_traced.register_fake
def _(q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, source: str, scale: float, causal: bool) -> Tensor:
    return q_BSHD.new_empty(q_BSHD.shape)


def flash_attention(
    kernel: FlashKernel,
    q_BSHD: Tensor,
    k_BSHD: Tensor,
    v_BSHD: Tensor,
    *,
    scale: float,
    causal: bool,
    metadata: AttentionMetadata,
) -> Tensor:
    """Attention as the contract of backends says, with one kernel for everything; a mask of keys is 2-D.

    In a graph that is being compiled the kernel is one opaque operation, so that the graph does not break around it; outside of
    one it is called directly, which is quicker for small shapes.

    Raises:
        ValueError: as `by_document` and `piecewise`.
    """
    is_traced = torch.compiler.is_compiling() and kernel.is_module
    whole = partial(_traced_whole, kernel) if is_traced else kernel.whole
    if metadata.full_attn_spans is not None:
        return piecewise(partial(whole, scale=scale), q_BSHD, k_BSHD, v_BSHD, metadata)
    if metadata.mask is not None:
        return _masked(kernel, q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=causal, metadata=metadata)
    if len(metadata.cu_seqlens) > 2 and kernel.varlen is not None and q_BSHD.shape[0] == 1:
        return _documents(kernel, q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=causal, metadata=metadata)

    def document(q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, /, mask: Tensor | None = None) -> Tensor:
        return whole(q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=causal)

    return by_document(document, q_BSHD, k_BSHD, v_BSHD, metadata)


def _traced_whole(
    kernel: FlashKernel, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, *, scale: float, causal: bool
) -> Tensor:
    made: Tensor = _traced(q_BSHD, k_BSHD, v_BSHD, kernel.source, scale, causal)
    return made


def _documents(
    kernel: FlashKernel,
    q_BSHD: Tensor,
    k_BSHD: Tensor,
    v_BSHD: Tensor,
    *,
    scale: float,
    causal: bool,
    metadata: AttentionMetadata,
) -> Tensor:
    metadata.check_covers(q_BSHD.shape[1], k_BSHD.shape[1])
    bounds = metadata.cu_seqlens, metadata.key_bounds
    if metadata.valid_kv_length is not None:
        bounds = bounds[0], tuple(min(bound, metadata.valid_kv_length) for bound in bounds[1])
    made = kernel.packed(q_BSHD[0], k_BSHD[0], v_BSHD[0], bounds=bounds, scale=scale, causal=causal)
    return made[None]


def _masked(
    kernel: FlashKernel,
    q_BSHD: Tensor,
    k_BSHD: Tensor,
    v_BSHD: Tensor,
    *,
    scale: float,
    causal: bool,
    metadata: AttentionMetadata,
) -> Tensor:
    """Keys that are hidden are taken out; where queries are the same rows, theirs are too, and come back as zeros."""
    mask = metadata.mask
    assert mask is not None
    host = mask.cpu()
    if len(metadata.cu_seqlens) > 2 or metadata.valid_kv_length is not None:
        raise ValueError(
            "a mask of keys comes with neither documents nor valid_kv_length; say all of it in one of them"
        )
    if bool(host.all()):
        return kernel.whole(q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=causal)
    is_self = q_BSHD.shape[1] == k_BSHD.shape[1]
    rows = []
    for index, kept in enumerate(host):
        places = kept.nonzero().flatten().to(q_BSHD.device, non_blocking=True)
        k, v = (x[index : index + 1].index_select(1, places) for x in (k_BSHD, v_BSHD))
        q = q_BSHD[index : index + 1]
        if not is_self:
            rows.append(kernel.whole(q, k, v, scale=scale, causal=causal) if len(places) else torch.zeros_like(q))
            continue
        out = torch.zeros_like(q)
        if len(places):
            out.index_copy_(1, places, kernel.whole(q.index_select(1, places), k, v, scale=scale, causal=causal))
        rows.append(out)
    return torch.cat(rows)


@dataclass(frozen=True, kw_only=True)
class FlashBackend(AttentionBackend):
    """A backend whose work is all one FlashAttention kernel. `kernel` is None until it is bound to a place."""

    kernel: FlashKernel | None = None

    def describe(self) -> str:
        """The name and the module."""
        return self.name if self.kernel is None else f"{self.name} ({self.kernel.source})"

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
        assert self.kernel is not None, "bind gives a backend that can be used"
        return flash_attention(self.kernel, q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=causal, metadata=metadata)
