"""Where a request's time and memory go, part by part; models name their parts, and who runs them may look.

Outside of `Profile.watching` naming a part costs one look-up. Counts, such as cache hits, are always kept.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartProfile:
    """One part of a request's run. seconds: over all calls, device work included; peak_memory_mb: most, in MiB."""

    seconds: float
    calls: int
    peak_memory_mb: float


class Profile:
    """Measures parts within parts; a part within another is called "outer.inner". For one thread and one run.

    Args:
        is_timed: False to keep counts only.
        synchronize: called at both ends of a part, so that work handed to a device is counted where it belongs.
        reset_peak: starts a new measurement of peak memory.
        peak_bytes: most memory since then.
    """

    def __init__(
        self,
        *,
        is_timed: bool,
        synchronize: Callable[[], None],
        reset_peak: Callable[[], None],
        peak_bytes: Callable[[], int],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._is_timed = is_timed
        self._synchronize = synchronize
        self._reset_peak = reset_peak
        self._read_peak = peak_bytes
        self._names: list[str] = []
        self._parts: dict[str, PartProfile] = {}
        self._earlier_peak = 0

    @property
    def parts(self) -> Mapping[str, PartProfile]:
        """Every part that has ended, an outer one behind those within it."""
        return dict(self._parts)

    @property
    def peak_bytes(self) -> int:
        """Most memory since the profile began, whatever was measured in between."""
        return max(self._earlier_peak, self._read_peak())

    def begin(self) -> None:
        """Measures memory anew from here on."""
        self._reset_peak()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within this block `part` and `count` of this thread reach this profile."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measures the block, also when it ends in an error."""
        if not self._is_timed:
            yield
            return
        self._synchronize()
        # A part's own peak needs a fresh measurement, so what was seen of the outer part is kept here.
        outer_peak = self.peak_bytes
        self._reset_peak()
        self._earlier_peak = 0
        self._names.append(name)
        start = time.perf_counter()
        try:
            yield
            self._synchronize()
        finally:
            self._add(".".join(self._names), time.perf_counter() - start, self.peak_bytes)
            self._names.pop()
            self._earlier_peak = max(outer_peak, self.peak_bytes)

    def _add(self, name: str, seconds: float, peak_bytes: int) -> None:
        before = self._parts.get(name, PartProfile(seconds=0.0, calls=0, peak_memory_mb=0.0))
        self._parts[name] = PartProfile(
            seconds=before.seconds + seconds,
            calls=before.calls + 1,
            peak_memory_mb=max(before.peak_memory_mb, peak_bytes / 2**20),
        )


_current: ContextVar[Profile | None] = ContextVar("omnireel_profile", default=None)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Names the block for whoever measures the run, if anybody does."""
    profile = _current.get()
    if profile is None:
        yield
        return
    with profile.part(name):
        yield


def count(name: str, times: int = 1) -> None:
    """Adds to a count of the run under way."""
    profile = _current.get()
    if profile is not None:
        profile.counts[name] += times
