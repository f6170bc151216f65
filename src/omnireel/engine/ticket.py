"""A request on its way through the engine: who waits for it, until when, and whether it is still wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from omnireel.errors import Cancelled, DeadlineExceeded, OmniReelError

if TYPE_CHECKING:
    from omnireel.engine.result import GenerationResult
    from omnireel.request import StepEvent, Workload

    OnEvent = Callable[["StepEvent | GenerationResult | OmniReelError"], None]


class Ticket:
    """One request's place in the engine. Safe to use from any thread.

    Its events end with exactly one GenerationResult or OmniReelError; nothing follows that.

    Args:
        workload: the settled request.
        on_event: is given every event, on a thread of the engine; it must be quick and must not raise.
        deadline: `time.monotonic()` after which the request has failed; None for never.
    """

    def __init__(self, workload: Workload, on_event: OnEvent, *, deadline: float | None) -> None:
        self.workload = workload
        self.deadline = deadline
        self.queued_at = time.monotonic()
        self.withdraw: Callable[[Ticket], None] | None = None
        self._on_event = on_event
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._is_final = False

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.workload.request_id

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

    def check(self, where: str) -> None:
        """Raises when the request is no longer wanted or out of time; `where` says what was about to happen.

        Raises:
            Cancelled: somebody called `cancel`.
            DeadlineExceeded: its time has run out.
        """
        if self.is_cancelled:
            raise Cancelled(self.request_id, where)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceeded(self.request_id, self.workload.timeout_seconds or 0.0, where)

    def emit(self, event: StepEvent) -> None:
        """Gives a step event, unless the last event has been given."""
        with self._lock:
            if not self._is_final:
                self._on_event(event)

    def finish(self, event: GenerationResult | OmniReelError) -> bool:
        """Gives the last event; False when it had been given before."""
        with self._lock:
            if self._is_final:
                return False
            self._is_final = True
            self._on_event(event)
            return True
