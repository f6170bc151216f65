"""Ulysses: ranks share out the rows of a sequence, and in attention its heads, so that each sees all rows of some heads.

A share is a run of rows; shares differ by a row at most, and nothing is padded. Every rank knows all shares from the number of rows,
so lengths are never asked for. Letters: B batch, S rows of all ranks, s rows of this one, J joint rows that all ranks have,
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


def to_heads(ranks: Ranks, tensors: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """Tensors [B,s,H,D] of this rank's rows as [B,S,h,D] of its heads, in one exchange; they may differ in H. counts: rows of
    each rank.

    Raises:
        ValueError: heads cannot be shared out, or the rows are not those of this rank.
        RankLost: a rank is gone.
    """
    size, (batch, rows, _, dim) = ranks.size, tensors[0].shape
    if rows != counts[ranks.rank]:
        raise ValueError(f"rank {ranks.rank} has {rows} rows, and its share is {counts[ranks.rank]}")
    heads = [_share_of_heads(item.shape[2], size) for item in tensors]
    # To each rank its heads of every tensor: one copy, in the order in which they are sent.
    sent = tensors[0].new_empty(size, rows, batch, sum(heads), dim)
    for part, item, count in zip(torch.split(sent, heads, dim=3), tensors, heads, strict=True):
        part.copy_(item.view(batch, rows, size, count, dim).permute(2, 1, 0, 3, 4))
    taken = ranks.exchange(sent.flatten(0, 1), [rows] * size, counts)
    return list(torch.split(taken.transpose(0, 1), heads, dim=2))


def to_rows(ranks: Ranks, x_BShD: Tensor, counts: Sequence[int]) -> Tensor:
    """The way back: [B,S,h,D] of this rank's heads as [B,s,H,D] of its rows.

    Raises:
        RankLost: a rank is gone.
    """
    batch, _, heads, dim = x_BShD.shape
    rows = counts[ranks.rank]
    taken = ranks.exchange(x_BShD.transpose(0, 1).contiguous(), counts, [rows] * ranks.size)
    by_rank = taken.view(ranks.size, rows, batch, heads, dim)
    return by_rank.permute(2, 1, 0, 3, 4).reshape(batch, rows, ranks.size * heads, dim)


def own_heads(ranks: Ranks, x_BJHD: Tensor) -> Tensor:
    """This rank's heads of rows that all ranks have: [B,J,h,D], a view."""
    count = _share_of_heads(x_BJHD.shape[2], ranks.size)
    return x_BJHD[:, :, ranks.rank * count : (ranks.rank + 1) * count]


def gather_heads(ranks: Ranks, x_BJhD: Tensor) -> Tensor:
    """All heads [B,J,H,D] of rows that all ranks have, from each rank's own.

    Raises:
        RankLost: a rank is gone.
    """
    return _from_all(ranks, x_BJhD.movedim(2, 0), [x_BJhD.shape[2]] * ranks.size).movedim(0, 2)


def gather_rows(ranks: Ranks, x_BsC: Tensor, counts: Sequence[int]) -> Tensor:
    """All rows [B,S,C] from each rank's own, the same bits on every rank. counts: rows of each rank.

    Raises:
        RankLost: a rank is gone.
    """
    return _from_all(ranks, x_BsC.transpose(0, 1), counts).transpose(0, 1)


def _from_all(ranks: Ranks, x: Tensor, counts: Sequence[int]) -> Tensor:
    """What every rank has along dim 0, one after the other. Shares of different sizes can be exchanged, but not all-gathered."""
    return ranks.exchange(torch.cat([x] * ranks.size), [x.shape[0]] * ranks.size, counts)


def _share_of_heads(heads: int, size: int) -> int:
    if heads % size:
        raise ValueError(f"{heads} heads cannot be shared out evenly by {size} ranks")
    return heads // size
