"""A request on its way through the engine: who waits for it, until when, and whether it is still wanted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from omnireel.errors import Cancelled, DeadlineExceeded, OmniReelError

if TYPE_CHECKING:
    from omnireel.engine.result import GenerationResult
    from omnireel.request import StepEvent, Workload

    OnEvent = Callable[["StepEvent | GenerationResult | OmniReelError"], None]

logger = logging.getLogger(__name__)

BUSY_SECONDS = 5.0
"""How long who ends a request waits for its listener to return from an earlier event."""

_MOMENT_SECONDS = 0.1


class Ticket:
    """One request's place in the engine. Safe to use from any thread.

    Its events end with exactly one GenerationResult or OmniReelError; nothing follows that. A listener may cancel, and is then told
    of the end before it has returned.

    Args:
        workload: the settled request.
        on_event: is given every event, one at a time and in order, on a thread of the engine, which waits meanwhile.
            What it raises is logged and changes nothing.
        timeout_seconds: time that the request may take from now on, waiting included; None for any.
        priority: lower ones run first, equal ones in order of arrival.

    runs: how often it has been given to a worker; has_begun: whether that one told of it. order, is_ready, withdraw: for the line, and for who runs it.
    """

    def __init__(
        self, workload: Workload, on_event: OnEvent, *, timeout_seconds: float | None = None, priority: int = 0
    ) -> None:
        self.workload = workload
        self.priority = priority
        self.runs = 0
        self.has_begun = False
        self.order = 0
        self.waited_seconds = 0.0
        self.is_ready = True
        self.queued_at = time.monotonic()
        self.timeout_seconds = timeout_seconds
        self.on_stage: Callable[[str], None] | None = None
        self.withdraw: Callable[[Ticket], None] | None = None
        self._on_event = on_event
        self._cancelled = threading.Event()
        # One that a listener may enter again, which cancels what another stage still has in line.
        self._lock = threading.RLock()
        self._is_final = False
        self._overdue: GenerationResult | OmniReelError | None = None

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.workload.request_id

    @property
    def deadline(self) -> float | None:
        """`time.monotonic()` after which the request has failed; None for never."""
        return None if self.timeout_seconds is None else self.queued_at + self.timeout_seconds

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    @property
    def is_finished(self) -> bool:
        """Whether the last event has been given."""
        return self._is_final

    def cancel(self) -> None:
        """Gives the request up: at once while it waits, after the step under way while it runs. Later calls do nothing."""
        self._cancelled.set()
        if self.withdraw is not None:
            self.withdraw(self)

    def problem(self, where: str) -> OmniReelError | None:
        """Why the request must not go on, if anything; `where` says what was about to happen."""
        if self.is_cancelled:
            return Cancelled(self.request_id, where)
        if self.deadline is not None and time.monotonic() > self.deadline:
            return DeadlineExceeded(self.request_id, self.timeout_seconds or 0.0, where)
        return None

    def check(self, where: str) -> None:
        """Raises what `problem` finds.

        Raises:
            Cancelled: somebody called `cancel`.
            DeadlineExceeded: its time has run out.
        """
        problem = self.problem(where)
        if problem is not None:
            raise problem

    def emit(self, event: StepEvent) -> None:
        """Gives a step event, unless the last event has been given."""
        with self._lock:
            if not self._is_final:
                self._give(event)
            if self._overdue is not None:
                self._end(self._overdue)

    def finish(self, event: GenerationResult | OmniReelError) -> bool:
        """Gives the last event; False when it had been given before.

        A listener that is still at an earlier event on another thread is waited for, but not for long: it is given this one
        when it returns from that.
        """
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            self._overdue = self._overdue or event
            # It may have returned just before it could see that.
            if not self._lock.acquire(timeout=_MOMENT_SECONDS):
                return True
        try:
            return self._end(self._overdue or event)
        finally:
            self._lock.release()

    def _end(self, event: GenerationResult | OmniReelError) -> bool:
        if self._is_final:
            return False
        self._is_final = True
        self._give(event)
        return True

    def _give(self, event: StepEvent | GenerationResult | OmniReelError) -> None:
        try:
            self._on_event(event)
        except BaseException:
            logger.exception("the listener of request %s failed", self.request_id)
