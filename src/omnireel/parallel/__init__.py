"""Several processes that compute one request together: their settings, how they find each other, and what they exchange.

Settings are read by rooms that must start without torch, so what needs torch is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from omnireel.parallel.member import Member
from omnireel.parallel.spec import ParallelSpec

if TYPE_CHECKING:
    from omnireel.parallel.ranks import Ranks
    from omnireel.parallel.ulysses import gather_heads, gather_rows, head_shares, own_heads, shares, to_heads, to_rows

__all__ = [
    "Member",
    "ParallelSpec",
    "Ranks",
    "gather_heads",
    "gather_rows",
    "head_shares",
    "own_heads",
    "shares",
    "to_heads",
    "to_rows",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{'ranks' if name == 'Ranks' else 'ulysses'}"), name)
