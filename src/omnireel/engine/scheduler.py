"""Who runs next: first come, first served, over a line of bounded length."""

from __future__ import annotations

import threading
import time
from collections import deque

from omnireel.engine.ticket import Ticket
from omnireel.errors import Cancelled, EngineError, QueueFull

FIRST_GUESS_SECONDS = 5.0
"""Retry time that a full line names before the speed of this machine has been measured."""


class Scheduler:
    """The waiting line. Safe to use from any thread; `next` is for the one thread that runs requests.

    No listener of a ticket is ever called while the line is locked, so a listener may submit and cancel.

    Args:
        max_queue: tickets that may wait beside the one that runs.
    """

    def __init__(self, *, max_queue: int) -> None:
        self._max_queue = max_queue
        self._line: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._running: Ticket | None = None
        self._running_since = 0.0
        self._closed_because = ""
        self._cost_per_second: float | None = None

    @property
    def waiting(self) -> int:
        """Tickets in the line."""
        return len(self._line)

    def submit(self, ticket: Ticket) -> None:
        """Puts a ticket at the end of the line.

        Raises:
            QueueFull: with the seconds after which a place should be free.
            EngineError: the scheduler is closed.
        """
        self.expire()
        with self._changed:
            if self._closed_because:
                raise EngineError(self._closed_because, hint="start another one")
            # With nothing running the first in line is as good as running, even before `next` has taken it out.
            if len(self._line) + (self._running is not None) > self._max_queue:
                raise QueueFull(len(self._line), self._retry_after())
            ticket.withdraw = self._withdraw
            self._line.append(ticket)
            self._changed.notify_all()
        if ticket.is_cancelled:
            self._withdraw(ticket)

    def next(self) -> Ticket | None:
        """Waits for the next ticket that is still wanted; None when the scheduler is closed. The last one is done then."""
        with self._changed:
            self._running = None
        while True:
            self.expire()
            with self._changed:
                if self._line:
                    self._running, self._running_since = self._line.popleft(), time.monotonic()
                    return self._running
                if self._closed_because:
                    return None
                self._changed.wait()

    def expire(self) -> None:
        """Ends tickets whose time ran out while they waited; called now and then by who runs the others."""
        with self._changed:
            late = [(ticket, problem) for ticket in self._line if (problem := ticket.problem("while it waited"))]
            for ticket, _ in late:
                self._line.remove(ticket)
        for ticket, problem in late:
            ticket.finish(problem)

    def measured(self, cost: float, seconds: float) -> None:
        """Learns the speed of this machine from a finished request; half the weight is on the newest."""
        if seconds > 0 and cost > 0:
            speed = cost / seconds
            self._cost_per_second = speed if self._cost_per_second is None else (self._cost_per_second + speed) / 2

    def close(self, because: str) -> list[Ticket]:
        """Takes no more tickets, and hands over those that wait, for the caller to end; `because` is told to who comes."""
        with self._changed:
            self._closed_because = self._closed_because or because
            left = list(self._line)
            self._line.clear()
            self._changed.notify_all()
        return left

    def _withdraw(self, ticket: Ticket) -> None:
        with self._changed:
            if ticket not in self._line:
                return
            self._line.remove(ticket)
        ticket.finish(Cancelled(ticket.request_id, "while it waited"))

    def _retry_after(self) -> float:
        """Seconds until the request that runs should be done, which moves the line up by one."""
        if self._cost_per_second is None:
            return FIRST_GUESS_SECONDS
        if self._running is None:
            return 1.0
        left = self._running.workload.cost / self._cost_per_second - (time.monotonic() - self._running_since)
        return max(1.0, left)
