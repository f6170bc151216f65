"""Ulysses: ranks share out the rows of a sequence, and in attention its heads, so that each sees all rows of some heads.

A share is a run of rows, or of heads; shares differ by one at most, and nothing is padded. Every rank knows all shares from the
numbers of rows and heads, so lengths are never asked for. Letters: B batch, S rows of all ranks, s rows of this one, J joint rows that all ranks have,
H heads, h heads of this rank, D channels of a head, P ranks, C channels of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.parallel.ranks import Ranks


def shares(num_rows: int, size: int) -> tuple[int, ...]:
    """Rows of each of `size` ranks, in order; the first ones have one more where it does not come out even."""
    each, more = divmod(num_rows, size)
    return tuple(each + (rank < more) for rank in range(size))


def head_shares(heads: int, size: int, units: int | None = None) -> tuple[int, ...]:
    """Heads of each rank, in order. units: what is shared out, where heads of queries belong to fewer of keys.

    Raises:
        ValueError: a rank would have none, or the heads do not belong to `units` evenly.
    """
    units = heads if units is None else units
    if units < size or heads % units:
        raise ValueError(f"{heads} heads of {units} groups cannot be shared out by {size} ranks")
    return tuple(heads // units * share for share in shares(units, size))


def to_heads(ranks: Ranks, tensors: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """Tensors [B,s,H,D] of this rank's rows as [B,S,h,D] of its heads, in one exchange; they may differ in H, for which those with more
    keep their order among the ranks. counts: rows of each rank.

    Raises:
        ValueError: heads cannot be shared out, or the rows are not those of this rank.
        RankLost: a rank is gone.
    """
    batch, rows, _, dim = tensors[0].shape
    if rows != counts[ranks.rank]:
        raise ValueError(f"rank {ranks.rank} has {rows} rows, and its share is {counts[ranks.rank]}")
    units = min(item.shape[2] for item in tensors)
    by_tensor = [head_shares(item.shape[2], ranks.size, units) for item in tensors]
    by_rank = [sum(heads) for heads in zip(*by_tensor, strict=True)]
    sizes = [rows * batch * heads * dim for heads in by_rank]
    sent = tensors[0].new_empty(sum(sizes))
    parts = [
        torch.split(item.transpose(0, 1), list(heads), dim=2) for item, heads in zip(tensors, by_tensor, strict=True)
    ]
    # To each rank its heads of every tensor, written where they are sent from.
    for rank, place in enumerate(torch.split(sent, sizes)):
        torch.cat([part[rank] for part in parts], dim=2, out=place.view(rows, batch, by_rank[rank], dim))
    own = by_rank[ranks.rank]
    taken = ranks.exchange(sent, sizes, [count * batch * own * dim for count in counts])
    whole = taken.view(sum(counts), batch, own, dim).transpose(0, 1)
    return list(torch.split(whole, [heads[ranks.rank] for heads in by_tensor], dim=2))


def to_rows(ranks: Ranks, x_BShD: Tensor, counts: Sequence[int], heads: Sequence[int]) -> Tensor:
    """The way back: [B,S,h,D] of this rank's heads as [B,s,H,D] of its rows. heads: of each rank.

    Raises:
        RankLost: a rank is gone.
    """
    batch, _, own, dim = x_BShD.shape
    rows = counts[ranks.rank]
    sizes = [rows * batch * count * dim for count in heads]
    flat = x_BShD.transpose(0, 1).contiguous().flatten()
    taken = ranks.exchange(flat, [count * batch * own * dim for count in counts], sizes)
    parts = [part.view(rows, batch, count, dim) for part, count in zip(torch.split(taken, sizes), heads, strict=True)]
    return torch.cat(parts, dim=2).transpose(0, 1)


def own_heads(ranks: Ranks, x_BJHD: Tensor, units: int | None = None) -> Tensor:
    """This rank's heads of rows that all ranks have: [B,J,h,D], a view. units: see `head_shares`."""
    return torch.split(x_BJHD, list(head_shares(x_BJHD.shape[2], ranks.size, units)), dim=2)[ranks.rank]


def gather_heads(ranks: Ranks, x_BJhD: Tensor, heads: Sequence[int]) -> Tensor:
    """All heads [B,J,H,D] of rows that all ranks have, from each rank's own. heads: of each rank.

    Raises:
        RankLost: a rank is gone.
    """
    return _from_all(ranks, x_BJhD.movedim(2, 0), heads).movedim(0, 2)


def gather_rows(ranks: Ranks, x_BsC: Tensor, counts: Sequence[int]) -> Tensor:
    """All rows [B,S,C] from each rank's own, the same bits on every rank. counts: rows of each rank.

    Raises:
        RankLost: a rank is gone.
    """
    return _from_all(ranks, x_BsC.transpose(0, 1), counts).transpose(0, 1)


def _from_all(ranks: Ranks, x: Tensor, counts: Sequence[int]) -> Tensor:
    """What every rank has along dim 0, one after the other. Shares of different sizes can be exchanged, but not all-gathered."""
    return ranks.exchange(torch.cat([x] * ranks.size), [x.shape[0]] * ranks.size, counts)
