"""Ctrl-C and the signals like it: the first stops the work in order, the second ends the process at once.

In order means: KeyboardInterrupt where the main thread stands, so that the engine is closed on the way out; it cancels
between two steps, and its files appear whole or not at all.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Owns the signal handlers while a command runs; enter it on the main thread."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells have it; Ctrl-C's where none was seen."""
        return 128 + (self._received or signal.SIGINT)

    def __enter__(self) -> Interrupts:
        for signum in _SIGNALS:
            before = signal.getsignal(signum)
            # Ignored is how nohup and shells put a process out of a signal's reach.
            if before is not signal.SIG_IGN:
                self._before[signum] = before
                signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self._received is not None:
            os._exit(128 + signum)
        self._received = signum
        raise KeyboardInterrupt
