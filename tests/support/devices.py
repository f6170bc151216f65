"""A stand-in for `torch.<kind>`, the seam between a platform and its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

MEBIBYTE = 2**20


class Runtime:
    """Remembers what was called; `properties` are those of each of its devices."""

    def __init__(self, count: int = 2, *, capability: Any = None, **properties: Any) -> None:
        self.calls: list[tuple[str, int | None]] = []
        self._count = count
        self._capability = capability
        self._properties = {"name": "a card", "total_memory": 64 * MEBIBYTE, **properties}

    def is_available(self) -> bool:
        return self._count > 0

    def device_count(self) -> int:
        return self._count

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(**self._properties)

    def get_device_capability(self, index: int) -> Any:
        return self._capability

    def init(self) -> None:
        self.calls.append(("init", None))

    def synchronize(self, index: int) -> None:
        self.calls.append(("synchronize", index))

    def reset_peak_memory_stats(self, index: int) -> None:
        self.calls.append(("reset", index))

    def max_memory_allocated(self, index: int) -> int:
        return (index + 1) * MEBIBYTE

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return (index + 3) * MEBIBYTE, 64 * MEBIBYTE

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.calls.append(("enter", index))
        yield
        self.calls.append(("leave", index))

    def empty_cache(self) -> None:
        self.calls.append(("empty", None))
