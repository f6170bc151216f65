"""Ranks in threads of this process: their exchanges are copies, so that what is made of them can be tested in milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from omnireel.parallel.ranks import Ranks

T = TypeVar("T")
PATIENCE_SECONDS = 20.0


class ThreadRanks(Ranks):
    """One of several threads; `table` and `barrier` are common to them."""

    def __init__(self, rank: int, size: int, table: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, size
        self._table, self._barrier = table, barrier
        self.exchanges = 0
        self.has_left = False

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """As the real one; lengths are checked on both sides."""
        assert rows.is_contiguous()
        assert rows.shape[0] == sum(sent)
        self.exchanges += 1
        self._table[self.rank] = torch.split(rows, list(sent))
        self._barrier.wait()
        parts = [self._table[rank][self.rank].clone() for rank in range(self.size)]
        self._barrier.wait()
        assert [len(part) for part in parts] == list(received)
        return torch.cat(parts)

    def agree(self, word: int) -> tuple[int, ...]:
        """As the real one."""
        self._table[self.rank] = word
        self._barrier.wait()
        words = tuple(self._table)
        self._barrier.wait()
        return words

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
