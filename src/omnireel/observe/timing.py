"""Seconds by stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _nothing() -> None:
    pass


class StageClock:
    """Adds up wall-clock seconds by the name of a stage; a stage that is entered twice counts both times.

    Args:
        synchronize: called at both ends of a stage, so that work handed to a device is counted where it belongs.
    """

    def __init__(self, synchronize: Callable[[], None] = _nothing) -> None:
        self._synchronize = synchronize
        self.durations: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the block under this name, also when it ends in an error."""
        self._synchronize()
        start = time.perf_counter()
        try:
            yield
            self._synchronize()
        finally:
            self.durations[name] = self.durations.get(name, 0.0) + time.perf_counter() - start
