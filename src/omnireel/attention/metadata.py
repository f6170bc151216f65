"""What a model knows about the sequence it attends over, as host integers: reading it never waits for a device.

Letters: B batch, S rows of the packed sequence, H heads, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from torch import Tensor

    Kernel: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMetadata:
    """The documents of a packed sequence.

    cu_seqlens: where each document begins, and the end of the last: (0, a, b, S). Rows attend only inside their own
        document. Empty when the sequence is one document.
    """

    cu_seqlens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        bounds = self.cu_seqlens
        if bounds and (bounds[0] != 0 or any(stop <= start for start, stop in pairwise(bounds))):
            raise ValueError(f"cu_seqlens must rise from 0, got {bounds}")


ONE_DOCUMENT = AttentionMetadata()


def by_document(kernel: Kernel, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, metadata: AttentionMetadata) -> Tensor:
    """Runs a kernel that knows nothing of documents on each of them in turn.

    Raises:
        ValueError: the documents do not end where the sequence ends.
    """
    bounds = metadata.cu_seqlens
    if bounds and bounds[-1] != q_BSHD.shape[1]:
        raise ValueError(f"documents end at row {bounds[-1]}, the sequence at row {q_BSHD.shape[1]}")
    if len(bounds) <= 2:
        return kernel(q_BSHD, k_BSHD, v_BSHD)
    parts = [kernel(q_BSHD[:, a:b], k_BSHD[:, a:b], v_BSHD[:, a:b]) for a, b in pairwise(bounds)]
    return torch.cat(parts, dim=1)
