"""Ctrl-C and the signals like it: the first stops the work in order, the second ends the process at once.

In order means: KeyboardInterrupt where the main thread stands, so that the engine is closed on the way out; it cancels
between two steps, and its files appear whole or not at all.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_current: ContextVar[Interrupts | None] = ContextVar("omnireel_interrupts", default=None)


class Interrupted(KeyboardInterrupt):
    """What the handlers raise. Where the plain one passes an `exec`, of which dataclasses make use, the interpreter ends with
    SIGINT later on, whatever the exit code is and though it was caught.
    """


def check() -> None:
    """To be called between phases.

    Raises:
        Interrupted: a signal came, and who was at work swallowed it; libraries do while they are imported.
    """
    interrupts = _current.get()
    if interrupts is not None and interrupts.was_received:
        raise Interrupted


@contextmanager
def deferred() -> Iterator[None]:
    """A block that the first signal lets finish: torch aborts the process when its import is interrupted.

    Raises:
        Interrupted: at the end of the block, when a signal came.
    """
    interrupts = _current.get()
    if interrupts is None:
        yield
        return
    interrupts.is_deferred = True
    try:
        yield
    finally:
        interrupts.is_deferred = False
    check()


class Interrupts:
    """Owns the signal handlers while a command runs; enter it on the main thread."""

    def __init__(self) -> None:
        self.is_deferred = False
        self._received: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells have it; Ctrl-C's where none was seen."""
        return 128 + (self._received or signal.SIGINT)

    @property
    def was_received(self) -> bool:
        """Whether a signal came."""
        return self._received is not None

    def __enter__(self) -> Interrupts:
        self._token = _current.set(self)
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
        _current.reset(self._token)
        for signum, before in self._before.items():
            signal.signal(signum, before)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self._received is not None:
            os._exit(128 + signum)
        self._received = signum
        if not self.is_deferred:
            raise Interrupted
