"""What a model knows about the sequence it attends over, as host integers: reading it never waits for a device.

Letters: B batch, S rows of the packed sequence (Sq of queries, Sk of keys), H heads, D channels of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.attention.joint import JointTokens


class Kernel(Protocol):
    """Attention over one document. `mask`: of its keys, [B,Sk], or dense."""

    def __call__(self, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, /, mask: Tensor | None = None) -> Tensor:
        """[B,Sq,H,D]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoTokenLayout:
    """`prefix_len` rows of anything else, then a video's rows (time, height, width) in raster order, then padding."""

    prefix_len: int
    latent_grid: tuple[int, int, int]

    @property
    def num_video_rows(self) -> int:
        """Rows of the video."""
        frames, height, width = self.latent_grid
        return frames * height * width

    @property
    def used_len(self) -> int:
        """Rows before the padding."""
        return self.prefix_len + self.num_video_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRange:
    """Query rows [local_start, local_end) here are rows from `global_start` on of the whole sequence."""

    local_start: int
    local_end: int
    global_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMetadata:
    """One call's sequence.

    cu_seqlens: where each document of the queries begins, and the end of the last: (0, a, b, S). Rows attend only inside
        their own document. Empty when the sequence is one document.
    cu_seqlens_k: the same of keys and values; empty when it is the same.
    mask: boolean, True where a key may be seen: [B,Sk], or dense and broadcastable to [B,H,Sq,Sk]. Best kept on the host.
    valid_kv_length: keys from here on are padding and are cut off; it needs no mask.
    full_attn_spans: rows [start, end) that see each other both ways while everything else is causal; the same in each sample.
    query_ranges: where local query rows lie in the whole sequence, for spans; empty when they are the whole.
    video: where the video lies. Publishing it asserts that a mask, if there is one, hides trailing padding alone.
    joint: rows beside the sequence that every row sees; the output has theirs too, in the order that it says.
    step, progress: of the denoising loop, from 0 on, and falling from 1 to 0; None outside of it.
    shares: rows of each rank, where ranks share out the main rows, which everything else still speaks of as a whole; empty where
        this process has them all.
    """

    cu_seqlens: tuple[int, ...] = ()
    cu_seqlens_k: tuple[int, ...] = ()
    mask: Tensor | None = None
    valid_kv_length: int | None = None
    full_attn_spans: tuple[tuple[int, int], ...] | None = None
    query_ranges: tuple[QueryRange, ...] = ()
    video: VideoTokenLayout | None = None
    joint: JointTokens | None = None
    step: int | None = None
    progress: float | None = None
    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("cu_seqlens", "cu_seqlens_k"):
            _check_bounds(name, getattr(self, name))
        if self.cu_seqlens_k and not self.cu_seqlens:
            raise ValueError("incomplete packed metadata: cu_seqlens_k without cu_seqlens")
        if self.cu_seqlens_k and len(self.cu_seqlens_k) != len(self.cu_seqlens):
            counts = f"{len(self.cu_seqlens)} bounds of queries and {len(self.cu_seqlens_k)} of keys"
            raise ValueError(f"queries and keys must have as many documents, got {counts}")

    @property
    def is_packed(self) -> bool:
        """Whether documents are told at all."""
        return bool(self.cu_seqlens)

    @property
    def key_bounds(self) -> tuple[int, ...]:
        """Bounds of the documents of keys."""
        return self.cu_seqlens_k or self.cu_seqlens

    def check_covers(self, num_queries: int, num_keys: int) -> None:
        """Raises ValueError unless the documents, where there are any, end where the rows end."""
        for what, bounds, rows in (("", self.cu_seqlens, num_queries), (" of keys", self.key_bounds, num_keys)):
            if bounds and bounds[-1] != rows:
                raise ValueError(f"documents{what} end at row {bounds[-1]}, the sequence at row {rows}")


def _check_bounds(name: str, bounds: tuple[int, ...]) -> None:
    if bounds and (len(bounds) < 2 or bounds[0] != 0 or any(stop < start for start, stop in pairwise(bounds))):
        raise ValueError(f"{name} must rise from 0 and have two bounds at least, got {bounds}")


ONE_DOCUMENT = AttentionMetadata()


def by_document(kernel: Kernel, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, metadata: AttentionMetadata) -> Tensor:
    """Runs a kernel that knows nothing of documents on each of them in turn. Keys past `valid_kv_length` are cut off before.

    Raises:
        ValueError: the documents do not end where the sequence ends, or a dense mask comes with several of them.
    """
    metadata.check_covers(q_BSHD.shape[1], k_BSHD.shape[1])
    mask, length = metadata.mask, metadata.valid_kv_length
    if len(metadata.cu_seqlens) <= 2:
        if length is not None:
            k_BSHD, v_BSHD = k_BSHD[:, :length], v_BSHD[:, :length]
            mask = None if mask is None else mask[..., :length]
        return kernel(q_BSHD, k_BSHD, v_BSHD, mask=mask)
    if mask is not None and mask.dim() != 2:
        raise ValueError("a dense mask already says which rows see each other; leave the documents out")
    parts = []
    for (start, stop), (first, last) in zip(pairwise(metadata.cu_seqlens), pairwise(metadata.key_bounds), strict=True):
        if start == stop:
            continue
        end = last if length is None else max(first, min(last, length))
        if end == first:
            # Rows without a key have nothing to attend: kernels differ in what they make of that, so it is said here.
            parts.append(torch.zeros_like(q_BSHD[:, start:stop]))
            continue
        part = None if mask is None else mask[:, first:end]
        parts.append(kernel(q_BSHD[:, start:stop], k_BSHD[:, first:end], v_BSHD[:, first:end], mask=part))
    return torch.cat(parts, dim=1)
