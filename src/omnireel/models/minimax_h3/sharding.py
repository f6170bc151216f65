"""What ranks that compute a request together share of MiniMax-H3: the packed rows of the DiT, and in attention its heads.

The refiner, the text encoder and both VAEs are whole on each rank: the first runs over few rows and once a request, and the clip is
decoded by one.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from omnireel.errors import BadCheckpoint
from omnireel.models.minimax_h3.layout import resolve_layout
from omnireel.weights.index import read_json

if TYPE_CHECKING:
    from omnireel.models.protocol import Checkpoint

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
