"""What ranks that compute a request together share of MiniMax-H3: the packed rows of the DiT, in attention its heads, and where that
is set the tiles of the clip when it is decoded.

The refiner, the text encoder, both encoders of media and the decoder of sound are whole on each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import TYPE_CHECKING

import torch

from omnireel.errors import BadCheckpoint
from omnireel.models.minimax_h3.layout import resolve_layout
from omnireel.weights.index import read_json

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.models.minimax_h3.tiling import Job
    from omnireel.models.protocol import Checkpoint
    from omnireel.parallel import Ranks

_KEY = "num_attention_heads"


def shared_heads(checkpoint: Checkpoint) -> int:
    """Attention heads of the DiT, from its config; of two, the largest number that ranks of either can share.

    Raises:
        BadSetting, BadCheckpoint: see `resolve_layout`; or a config does not say it.
    """
    found = []
    for folder in resolve_layout(checkpoint).denoisers.values():
        heads = read_json(folder / "config.json").get(_KEY)
        if not isinstance(heads, int) or heads < 1:
            raise BadCheckpoint(
                f"{folder.name}/config.json", "must be a whole number from 1 on", key=_KEY, found=repr(heads)
            )
        found.append(heads)
    return gcd(*found)


def shared_tiles(
    work: Callable[[Sequence[Job]], Iterator[Tensor]],
    jobs: Sequence[Job],
    ranks: Ranks,
    *,
    batch: int,
    pause: Callable[[], None] | None = None,
) -> Iterator[Tensor]:
    """All tiles in the order of `jobs` on the first rank, and none on the others, each of which makes its share: `batch` of every round,
    in which tiles, all of one shape, are handed over.

    Args:
        work: makes the tiles of some jobs, [B,...] each.
        jobs: all of them, the same on every rank.
        ranks: who share them.
        batch: tiles that are made at once.
        pause: called before each round but the first; what it raises, it has to raise on all ranks.

    Raises:
        RankLost: a rank is gone.
    """
    size, nothing = ranks.size, torch.empty(0, 1, device=ranks.device)
    for first in range(0, len(jobs), size * batch):
        if pause is not None and first:
            pause()
        shares = [jobs[start : start + batch] for start in range(first, first + size * batch, batch)]
        made = list(work(shares[ranks.rank])) if shares[ranks.rank] else []
        own = torch.stack(made) if made else nothing
        counts = [len(share) for share in shares]
        sent = [counts[ranks.rank], *[0] * (size - 1)]
        yield from ranks.exchange(own, sent, counts if ranks.is_first else [0] * size)
