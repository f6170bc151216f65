"""The one attention layer of all models: projections and norms stay in the model, the kernel is a backend's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from omnireel.attention.backend import LayerFacts
from omnireel.attention.backends import torch_sdpa
from omnireel.attention.joint import with_joint
from omnireel.attention.metadata import ONE_DOCUMENT, AttentionMetadata
from omnireel.parallel.ulysses import gather_heads, head_shares, own_heads, to_heads, to_rows

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.attention.backend import AttentionBackend
    from omnireel.parallel import Ranks


class Attention(nn.Module):
    """Softmax attention of `num_heads` heads over full sequences, scaled by 1 / sqrt(head_dim). Holds no weights.

    `role` names what the layer is for; settings, reports and sequence parallelism address layers by it. `index`: which of the
    model's blocks it is in, `name`: its path in the model, for backends that treat some otherwise. ranks: who shares out the rows
    of calls that say so; None where nobody does.

    Raises:
        ValueError: the backend cannot serve such a layer, or ranks cannot share its heads.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        backend: AttentionBackend,
        role: str,
        causal: bool = False,
        index: int | None = None,
        name: str = "",
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.backend = backend
        self.facts = LayerFacts(role=role, name=name, index=index, causal=causal)
        self.scale = 1.0 / math.sqrt(head_dim)
        self.ranks = ranks
        backend.check_layer(self.facts)
        if ranks is not None and num_heads < ranks.size:
            raise ValueError(f"{ranks.size} ranks cannot share the {num_heads} heads of {role}")

    def forward(
        self, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, metadata: AttentionMetadata | None = None
    ) -> Tensor:
        """[B,S,H,D] (batch, rows, heads, channels) in and out, with joint tokens [B,J+S,H,D]; no metadata means one document.

        float32 rows go to TORCH_SDPA where the backend has no float32. Where ranks share out the rows, S are those of this one.

        Raises:
            ValueError: the metadata asks for what the backend cannot do, or does not fit the rows.
            RankLost: a rank that shares the rows is gone.
        """
        metadata = metadata or ONE_DOCUMENT
        if metadata.shares:
            return self._shared(q_BSHD, k_BSHD, v_BSHD, metadata)
        return self._whole(q_BSHD, k_BSHD, v_BSHD, metadata)

    def _shared(self, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Of this rank's rows: all rows of this rank's heads are attended over, so that nothing else need know of ranks."""
        ranks, joint = self.ranks, metadata.joint
        if ranks is None:
            raise ValueError(f"the rows of {self.facts.role} are shared out, and it knows no ranks")
        heads = head_shares(q_BSHD.shape[2], ranks.size, k_BSHD.shape[2])
        counts, metadata = (
            metadata.shares,
            replace(metadata, shares=(), mask=_own_mask(metadata.mask, heads, ranks.rank)),
        )
        q_BSHD, k_BSHD, v_BSHD = to_heads(ranks, (q_BSHD, k_BSHD, v_BSHD), counts)
        if joint is None:
            return to_rows(ranks, self._whole(q_BSHD, k_BSHD, v_BSHD, metadata), counts, heads)
        units = joint.key.shape[2]
        query, key, value = (own_heads(ranks, item, units) for item in (joint.query, joint.key, joint.value))
        own = replace(joint, query=query, key=key, value=value)
        both = self._whole(q_BSHD, k_BSHD, v_BSHD, replace(metadata, joint=own))
        main, beside = joint.parted(both)
        return joint.beside(to_rows(ranks, main, counts, heads), gather_heads(ranks, beside, heads))

    def _whole(self, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, metadata: AttentionMetadata) -> Tensor:
        if metadata.joint is not None:
            q_BSHD, k_BSHD, v_BSHD, metadata = with_joint(q_BSHD, k_BSHD, v_BSHD, metadata)
        backend, can = self.backend, self.backend.can
        if q_BSHD.dtype is torch.float32 and can.dtypes and torch.float32 not in can.dtypes:
            backend = torch_sdpa.BACKEND
        elif metadata is not ONE_DOCUMENT:
            self._check(metadata)
        run = _traced if backend.can.is_traceable else _untraced
        return run(backend, q_BSHD, k_BSHD, v_BSHD, scale=self.scale, metadata=metadata, layer=self.facts)

    def _check(self, metadata: AttentionMetadata) -> None:
        name, can, mask = self.backend.name, self.backend.can, metadata.mask
        if mask is not None and can.masks == "none":
            raise ValueError(f"{name} takes no masks; choose TORCH_SDPA for {self.facts.role}")
        if mask is not None and mask.dim() != 2 and can.masks != "any":
            raise ValueError(
                f"{name} takes no dense masks, only masks of keys; choose TORCH_SDPA for {self.facts.role}"
            )
        if metadata.full_attn_spans is not None and not can.has_spans and mask is None:
            raise ValueError(f"{name} has no mixed attention; choose FLASH_ATTN or TORCH_SDPA, or give a dense mask")

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"{self.facts.role}, {self.num_heads} x {self.head_dim}, {self.backend.name}"


def _own_mask(mask: Tensor | None, heads: Sequence[int], rank: int) -> Tensor | None:
    """Of a dense mask that differs by head, those of this rank's heads. heads: of each rank."""
    if mask is None or mask.dim() < 3 or mask.shape[-3] == 1:
        return mask
    return torch.split(mask, list(heads), dim=-3)[rank]


def _traced(
    backend: AttentionBackend,
    q_BSHD: Tensor,
    k_BSHD: Tensor,
    v_BSHD: Tensor,
    *,
    scale: float,
    metadata: AttentionMetadata,
    layer: LayerFacts,
) -> Tensor:
    return backend.forward(q_BSHD, k_BSHD, v_BSHD, scale=scale, causal=layer.causal, metadata=metadata, layer=layer)


_untraced: Callable[..., Tensor] = torch.compiler.disable(_traced)  # type: ignore[no-untyped-call]
