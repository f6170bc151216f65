"""Who runs next: first come, first served, over a line of bounded length."""

from __future__ import annotations

import threading
import time
from collections import deque

from omnireel.engine.ticket import Ticket
from omnireel.errors import Cancelled, EngineError, OmniReelError, QueueFull

FIRST_GUESS_SECONDS = 5.0
"""Retry time that a full line names before the speed of this machine has been measured."""


class Scheduler:
    """The waiting line. Safe to use from any thread; `next` is for the one thread that runs requests.

    Args:
        max_queue: tickets that may wait; the one that runs is not counted.
    """

    def __init__(self, *, max_queue: int) -> None:
        self._max_queue = max_queue
        self._line: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._is_open = True
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
        with self._changed:
            if not self._is_open:
                raise EngineError("the engine is closed", hint="start another one")
            self._drop_expired()
            if len(self._line) >= self._max_queue:
                raise QueueFull(len(self._line), self._retry_after())
            ticket.withdraw = self._withdraw
            self._line.append(ticket)
            self._changed.notify_all()
        if ticket.is_cancelled:
            self._withdraw(ticket)

    def next(self) -> Ticket | None:
        """Waits for the next ticket that is still wanted; None when the scheduler is closed and the line is empty."""
        with self._changed:
            while True:
                self._drop_expired()
                if self._line:
                    return self._line.popleft()
                if not self._is_open:
                    return None
                self._changed.wait()

    def expire(self) -> None:
        """Ends tickets whose time ran out while they waited; called now and then by who runs the others."""
        with self._changed:
            self._drop_expired()

    def measured(self, cost: float, seconds: float) -> None:
        """Learns the speed of this machine from a finished request; half the weight is on the newest."""
        if seconds > 0 and cost > 0:
            speed = cost / seconds
            self._cost_per_second = speed if self._cost_per_second is None else (self._cost_per_second + speed) / 2

    def close(self, *, reason: OmniReelError | None = None) -> None:
        """Takes no more tickets and ends those that wait, with `reason` or as cancelled."""
        with self._changed:
            self._is_open = False
            left = list(self._line)
            self._line.clear()
            self._changed.notify_all()
        for ticket in left:
            ticket.finish(reason or Cancelled(ticket.request_id, "the engine was closed"))

    def _withdraw(self, ticket: Ticket) -> None:
        with self._changed:
            if ticket not in self._line:
                return
            self._line.remove(ticket)
        ticket.finish(Cancelled(ticket.request_id, "while it waited"))

    def _drop_expired(self) -> None:
        now = time.monotonic()
        for ticket in [t for t in self._line if t.deadline is not None and now > t.deadline]:
            self._line.remove(ticket)
            try:
                ticket.check("while it waited")
            except OmniReelError as error:
                ticket.finish(error)

    def _retry_after(self) -> float:
        if self._cost_per_second is None:
            return FIRST_GUESS_SECONDS
        return max(1.0, self._line[0].workload.cost / self._cost_per_second)
