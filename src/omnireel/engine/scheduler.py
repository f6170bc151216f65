"""Who runs next: by priority, then first come, first served, over a line of bounded length and one or more lanes."""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections.abc import Hashable
from typing import Any

from omnireel.engine.ticket import Ticket
from omnireel.errors import Cancelled, EngineError, QueueFull

FIRST_GUESS_SECONDS = 5.0
"""Retry time that a full line names before the speed of this machine has been measured."""

_STABLE = (0.05, 5)
_STABLE_OF_SEVERAL = (0.3, 2)
"""A batch is not waited for any longer when nobody has come for this many seconds, or for this part of the whole wait: of one
lane, and of several, which are fed in turns.
"""


class Scheduler:
    """The waiting line. Safe to use from any thread; a lane is whoever runs requests, one thread each.

    No listener of a ticket is ever called while the line is locked, so a listener may submit and cancel.

    Args:
        max_queue: tickets that may wait beside those that run.
        max_batch: requests of one batch key that a lane may run at a time.
        batch_wait_seconds: how long a lane that has room in its batch waits for more of them before it begins.
    """

    def __init__(self, *, max_queue: int, max_batch: int = 1, batch_wait_seconds: float = 0.0) -> None:
        self._max_queue = max_queue
        self._max_batch = max_batch
        self._batch_wait = batch_wait_seconds
        self._line: list[Ticket] = []
        self._arrivals = itertools.count()
        self._changed = threading.Condition()
        self._running: dict[Ticket, float] = {}
        self._of_lane: dict[Hashable, set[Ticket]] = {}
        self._idle: set[Hashable] = set()
        self._lanes = 1
        self._closed_because = ""
        self._cost_per_second: float | None = None

    @property
    def waiting(self) -> int:
        """Tickets in the line."""
        return len(self._line)

    @property
    def running(self) -> int:
        """Tickets that a lane has."""
        return len(self._running)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return bool(self._closed_because)

    def set_lanes(self, count: int) -> None:
        """How many lanes can run requests now; each has places beside those of the line."""
        with self._changed:
            self._lanes = count

    def submit(self, ticket: Ticket, *, is_ready: bool = True) -> None:
        """Puts a ticket in line; one that is not ready keeps its place, and others pass it until `ready`.

        Raises:
            QueueFull: with the seconds after which a place should be free.
            EngineError: the scheduler is closed.
        """
        self.expire()
        with self._changed:
            if self._closed_because:
                raise EngineError(self._closed_because, hint="start another one")
            # A free lane's place is as good as running, even before `next` has taken the ticket out.
            free = max(0, self._lanes * self._max_batch - len(self._running))
            if len(self._line) >= self._max_queue + free:
                raise QueueFull(len(self._line), self._retry_after())
            ticket.order, ticket.is_ready = next(self._arrivals), is_ready
            self._insert(ticket)
        if ticket.is_cancelled:
            self._withdraw(ticket)

    def ready(self, ticket: Ticket) -> None:
        """Lets a ticket run that was put in line before it could; one that has ended meanwhile stays ended."""
        with self._changed:
            ticket.is_ready = True
            self._changed.notify_all()

    def again(self, ticket: Ticket) -> None:
        """Puts a ticket that ran in vain back where it was in line, whatever the line's length."""
        with self._changed:
            if not self._closed_because:
                self._insert(ticket)
                closed = ""
            else:
                closed = self._closed_because
        if closed:
            ticket.finish(EngineError(closed, hint="start another one"))
        elif ticket.is_cancelled:
            self._withdraw(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Takes a ticket out of the line without ending it."""
        with self._changed:
            if ticket in self._line:
                self._line.remove(ticket)

    def next(self, lane: Hashable = 0, timeout_seconds: float | None = None) -> list[Ticket]:
        """Waits for tickets that are still wanted and may run as one batch; those that the lane had before are done then.

        Empty when the scheduler is closed, or when none came in that time.
        """
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._changed:
            self._release(lane)
            self._idle.add(lane)
        try:
            while True:
                self.expire()
                with self._changed:
                    head = self._head()
                    if head is not None:
                        batch = self._batch(head)
                        if len(batch) == self._max_batch or not self._waits(head, batch):
                            return self._taken(lane, batch)
                        continue
                    left = None if until is None else until - time.monotonic()
                    if self._closed_because or (left is not None and left <= 0):
                        return []
                    self._changed.wait(left)
        finally:
            with self._changed:
                self._idle.discard(lane)

    def join(self, lane: Hashable, key: tuple[Any, ...], room: int) -> list[Ticket]:
        """Tickets at the head of the line that have this batch key, for a lane that steps such ones already.

        None while another lane has nothing to do: that one is less loaded.
        """
        if room < 1 or not self._line:
            return []
        self.expire()
        with self._changed:
            head = self._head()
            if self._idle or head is None or head.workload.batch_key != key:
                return []
            return self._taken(lane, self._batch(head)[:room])

    def ended(self, lane: Hashable, ticket: Ticket) -> None:
        """A ticket of a batch has ended before the others."""
        with self._changed:
            self._running.pop(ticket, None)
            self._of_lane.get(lane, set()).discard(ticket)

    def expire(self) -> None:
        """Ends tickets whose time ran out while they waited."""
        with self._changed:
            late = [(ticket, problem) for ticket in self._line if (problem := ticket.problem("while it waited"))]
            for ticket, _ in late:
                self._line.remove(ticket)
        for ticket, problem in late:
            ticket.finish(problem)

    def watch(self) -> None:
        """Ends waiting tickets when their time runs out, until the scheduler is closed; the work of a thread of its own."""
        while True:
            self.expire()
            with self._changed:
                if self._closed_because:
                    return
                deadlines = [ticket.deadline for ticket in self._line if ticket.deadline is not None]
                self._changed.wait(max(0.0, min(deadlines) - time.monotonic()) + 0.001 if deadlines else None)

    def retry_after(self) -> float:
        """The seconds that `QueueFull` would tell now."""
        with self._changed:
            return self._retry_after()

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

    def _insert(self, ticket: Ticket) -> None:
        ticket.withdraw = self._withdraw
        bisect.insort(self._line, ticket, key=lambda item: (item.priority, item.order))
        self._changed.notify_all()

    def _head(self) -> Ticket | None:
        return next((ticket for ticket in self._line if ticket.is_ready), None)

    def _batch(self, head: Ticket) -> list[Ticket]:
        """The head and those right behind it that may run with it; a different one is not passed, or it might never run."""
        key = head.workload.batch_key
        ready = (ticket for ticket in self._line if ticket.is_ready)
        alike = itertools.takewhile(lambda ticket: ticket.workload.batch_key == key, ready)
        return list(itertools.islice(alike, self._max_batch))

    def _waits(self, head: Ticket, batch: list[Ticket]) -> bool:
        """Waits for the batch to grow; False when it should begin as it is. The line may have changed when True."""
        if self._batch_wait <= 0 or self._closed_because or len(self._line) > len(batch):
            return False
        now = time.monotonic()
        most, part = _STABLE if self._lanes == 1 else _STABLE_OF_SEVERAL
        stable = min(most, self._batch_wait / part)
        until = min(head.queued_at + self._batch_wait, batch[-1].queued_at + stable)
        if now >= until:
            return False
        self._changed.wait(until - now)
        return True

    def _taken(self, lane: Hashable, batch: list[Ticket]) -> list[Ticket]:
        now = time.monotonic()
        for ticket in batch:
            self._line.remove(ticket)
            self._running[ticket] = now
        self._of_lane.setdefault(lane, set()).update(batch)
        return batch

    def _release(self, lane: Hashable) -> None:
        for ticket in self._of_lane.pop(lane, set()):
            self._running.pop(ticket, None)

    def _withdraw(self, ticket: Ticket) -> None:
        with self._changed:
            if ticket not in self._line:
                return
            self._line.remove(ticket)
        ticket.finish(Cancelled(ticket.request_id, "while it waited"))

    def _retry_after(self) -> float:
        """Seconds until the first of those that run should be done, which moves the line up by one; none runs while no replica
        is there.
        """
        speed = self._cost_per_second
        if speed is None or not self._running:
            return FIRST_GUESS_SECONDS
        now = time.monotonic()
        left = [ticket.workload.cost / speed - (now - since) for ticket, since in self._running.items()]
        return max(1.0, min(left))
