"""Tiles put together as pictures: neighbours go over into each other linearly, over what they share.

The neighbours that a tile is blended with are as they were decoded, not as they were blended themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from omnireel.models.minimax_h3.tiling import CutPlan, TilePlan


def stitch_clips(tiles: Iterable[Tensor], plan: CutPlan) -> Iterator[Tensor]:
    """Tiles in the order of the plan's jobs as whole clips; no more than one clip's tiles are held."""
    held: list[Tensor] = []
    for tile in tiles:
        held.append(tile)
        if len(held) == plan.tiles_per_clip:
            yield stitch(held, *plan.made)
            held = []


def stitch(tiles: Sequence[Tensor], rows: TilePlan, columns: TilePlan) -> Tensor:
    """Tiles in order of rows, then columns, as one picture: each goes over from the one above, then from the one to the left."""
    first = tiles[0]
    if len(tiles) == 1:
        return first
    height, width = rows.starts[-1] + first.shape[-2], columns.starts[-1] + first.shape[-1]
    whole = first.new_empty(*first.shape[:-2], height, width)
    bottoms, rights = (*rows.starts[1:], height), (*columns.starts[1:], width)
    for k, tile in enumerate(tiles):
        i, j = divmod(k, len(columns))
        place = whole[..., rows.starts[i] : bottoms[i], columns.starts[j] : rights[j]]
        place.copy_(tile[..., : place.shape[-2], : place.shape[-1]])
        if i:
            fade_(place, tiles[k - len(columns)][..., : place.shape[-1]], rows.overlaps[i - 1], dim=-2)
        if j:
            fade_(place, tiles[k - 1][..., : place.shape[-2], :], columns.overlaps[j - 1], dim=-1)
    return whole


def fade_(after: Tensor, before: Tensor, extent: int, *, dim: int) -> None:
    """Writes over the first `extent` places of `after` along `dim`: they go over linearly from the last ones of `before`.

    Where `after` has been cut shorter than that, the rest of the way is missing with it.
    """
    extent = min(before.shape[dim], extent)
    seen = min(after.shape[dim], extent)
    shape = [1] * after.ndim
    shape[dim] = seen
    new = (torch.arange(extent, device=after.device, dtype=after.dtype) / extent)[:seen].view(shape)
    old = before.narrow(dim, before.shape[dim] - extent, seen)
    after.narrow(dim, 0, seen).mul_(new).add_(old * (1 - new))
