"""Which of the processes of a replica one is, as it is told before it loads; no torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """rank: from 0 on, of `size` processes; store: the file through which they find each other, as this process names it."""

    rank: int
    size: int
    store: str
