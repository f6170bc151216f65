"""Ranks in threads of this process: their exchanges are copies, so that what is made of them can be tested in milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from omnireel.errors import RankLost
from omnireel.parallel.ranks import Ranks

T = TypeVar("T")
PATIENCE_SECONDS = 20.0


class ThreadRanks(Ranks):
    """One of several threads; `table` and `barrier` are common to them."""

    def __init__(self, rank: int, size: int, table: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.device = rank, size, torch.device("cpu")
        self._table, self._barrier = table, barrier
        self.exchanges = 0
        self.has_left = False

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """As the real one; lengths are checked on both sides."""
        assert rows.is_contiguous()
        assert rows.shape[0] == sum(sent)
        self.exchanges += 1
        self._table[self.rank] = torch.split(rows, list(sent))
        self._wait("exchanged rows")
        parts = [self._table[rank][self.rank].clone() for rank in range(self.size)]
        self._wait("exchanged rows")
        assert [len(part) for part in parts] == list(received)
        # Who sends nothing need not know the shape of what others send.
        return torch.cat([rows.new_empty(0, *rows.shape[1:]), *(part for part in parts if len(part))])

    def agree(self, word: int) -> tuple[int, ...]:
        """As the real one."""
        self._table[self.rank] = word
        self._wait("agreed with the others")
        words = tuple(self._table)
        self._wait("agreed with the others")
        return words

    def _wait(self, what: str) -> None:
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError as error:
            raise RankLost(self.rank, what) from error

    @property
    def is_joined(self) -> bool:
        """As the real one."""
        return not self.has_left

    def leave(self) -> None:
        """Remembers it, and fails whoever waits."""
        self.has_left = True
        self._barrier.abort()


def together(size: int, work: Callable[[ThreadRanks], T]) -> list[T]:
    """What each rank makes of `work`, in their order."""
    table: list[Any] = [None] * size
    barrier = threading.Barrier(size, timeout=PATIENCE_SECONDS)

    def one(rank: int) -> T:
        try:
            return work(ThreadRanks(rank, size, table, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))
