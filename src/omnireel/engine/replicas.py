"""Lanes: one thread for each replica of the model, which takes requests from the one line and brings its replica back.

A lane only takes what it can run at once, so the least loaded replica gets the next request, and one that died gets none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from omnireel.engine.front import Front
from omnireel.errors import EngineError, OmniReelError, WorkerDied
from omnireel.observe.log import name_stage

if TYPE_CHECKING:
    from omnireel.engine.build import WorkerSpec
    from omnireel.engine.executors import Executor, Outcome
    from omnireel.engine.scheduler import Scheduler
    from omnireel.engine.ticket import Ticket

logger = logging.getLogger(__name__)

TEND_SECONDS = 0.5
"""How often an idle replica is looked after; its death is seen within this time."""

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.2, 30.0
"""Pause before a replica is started again: the first, doubled with each death in a row up to the second."""

STABLE_SECONDS = 600.0
"""A replica that ran this long does not die of what it died of before."""

_ANOTHER = "start another engine"


class LaneState(StrEnum):
    """What a replica does now."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    """It died too often, and is not started again."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHealth:
    """One replica as it is now. pids: its processes on this machine, one a rank; running: requests that it has; restarts: since
    the engine's start; problem: why it last died.
    """

    name: str
    state: LaneState
    pids: tuple[int, ...]
    running: int
    restarts: int
    problem: str

    @property
    def pid(self) -> int | None:
        """The first of its processes."""
        return next(iter(self.pids), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What becomes of a replica that died, and of what it ran.

    max_deaths: deaths in a row, without a finished request in between, after which it is given up.
    reruns: how often a request is run again whose worker died; 0 to fail it.
    """

    max_deaths: int = 5
    reruns: int = 0


class Lane:
    """One replica at work.

    Args:
        finished: is given each request that ended here, with its report or error, on the lane's thread.
        gone: called when the lane has ended, with the reason; "" after `close`.
        restarted: called when the replica runs again.
        is_joined: whether requests may join those that run between two steps.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        executor: Executor,
        scheduler: Scheduler,
        recovery: Recovery,
        *,
        finished: Callable[[Ticket, Outcome, Lane], None],
        gone: Callable[[Lane, str], None],
        restarted: Callable[[], None] = lambda: None,
        is_joined: bool = False,
    ) -> None:
        self.spec = spec
        self.name = str(spec.rank)
        self.executor = executor
        self.state = LaneState.LOADING
        self.facts: Mapping[str, Any] = {}
        self._scheduler = scheduler
        self._recovery = recovery
        self._finished, self._gone, self._restarted = finished, gone, restarted
        self._mine: dict[str, Ticket] = {}
        self._deaths = self._restarts = 0
        self._ready_since = 0.0
        self._problem = ""
        self._is_joined = is_joined
        self._closing = threading.Event()
        # Each its own: one that writes a long clip does not keep the others waiting.
        self.front = Front()
        # A daemon, as a program that forgot to close its engine should still be able to end.
        self.thread = threading.Thread(target=self._live, name=f"omnireel-engine-{self.name}", daemon=True)

    @property
    def device_name(self) -> str:
        """The replica's device, as figures call it."""
        return f"{self.spec.context.platform.name}:{self.spec.device_index}"

    @property
    def health(self) -> ReplicaHealth:
        """The replica as it is now."""
        return ReplicaHealth(
            name=self.name,
            state=self.state,
            pids=self.executor.pids,
            running=len(self._mine),
            restarts=self._restarts,
            problem=self._problem,
        )

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is the lane, or finishes one of its requests."""
        return threading.current_thread() is self.thread or self.front.is_current_thread

    def start(self) -> None:
        """Begins to take requests; its executor has been started."""
        self.front.start()
        self.thread.start()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the lane's end and that of what it finishes; False when that takes longer."""
        until = time.monotonic() + timeout_seconds
        self.thread.join(timeout_seconds)
        return not self.thread.is_alive() and self.front.join(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Takes nothing more; the thread ends when what runs has ended. A model that loads is not waited for."""
        self._closing.set()
        if self.state in (LaneState.LOADING, LaneState.RESTARTING):
            self.executor.kill()

    def pause(self) -> None:
        """See `Feed.pause`."""
        self._scheduler.expire()

    def more(self, key: tuple[Any, ...], room: int) -> Sequence[Ticket]:
        """See `Feed.more`."""
        joined = self._scheduler.join(self, key, room) if self._is_joined else []
        self._begin(joined)
        return joined

    def done(self, ticket: Ticket, outcome: Outcome) -> None:
        """See `Feed.done`."""
        self._mine.pop(ticket.request_id, None)
        if not isinstance(outcome, WorkerDied):
            self._deaths = 0
        self._scheduler.ended(self, ticket)
        self._finished(ticket, outcome, self)

    def _begin(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            ticket.runs += 1
            ticket.has_begun = False
            ticket.waited_seconds = time.monotonic() - ticket.queued_at
            self._mine[ticket.request_id] = ticket

    def _live(self) -> None:
        reason = ""
        name_stage(self.spec.stage)
        try:
            self.facts = self.executor.facts()
            self._is_ready()
            reason = self._loop()
        except BaseException:
            logger.exception("the engine's thread died")
            reason = "the engine stopped on a bug; the log has the details"
        finally:
            left = list(self._mine.values())
            self._mine.clear()
            for ticket in left:
                self._finished(
                    ticket, EngineError(f"request {ticket.request_id} failed: {reason}", hint=_ANOTHER), self
                )
            try:
                self.executor.close()
            except Exception:
                # Or nobody would be told that the lane has ended.
                logger.exception("replica %s could not be closed", self.name)
            self.state = LaneState.FAILED if reason else LaneState.CLOSED
            self.front.stop()
            self._gone(self, reason)

    def _loop(self) -> str:
        """Until the engine is closed, or there is a reason to stop."""
        while not self._closing.is_set():
            try:
                tickets = self._scheduler.next(self, TEND_SECONDS)
                if tickets:
                    self._begin(tickets)
                    self.executor.execute(tickets, self)
                elif self._scheduler.is_closed:
                    return ""
                else:
                    self.executor.check(TEND_SECONDS)
                # Else the requests and their listeners stay in memory until the next one comes.
                del tickets
            except WorkerDied as error:
                reason = self._recovered(error)
                if reason:
                    return reason
        return ""

    def _recovered(self, error: WorkerDied) -> str:
        """Ends or repeats what was lost and starts the replica again; a reason where that is no use."""
        self.state = LaneState.RESTARTING
        if time.monotonic() - self._ready_since > STABLE_SECONDS:
            self._deaths = 0
        while True:
            self._problem = error.message
            self._deaths += 1
            logger.error("replica %s: %s", self.name, error.message)
            for ticket in list(self._mine.values()):
                self._lost(ticket, error)
            if self._deaths >= self._recovery.max_deaths:
                return f"replica {self.name} died {self._deaths} times in a row, at last: {error.message}"
            pause = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** (self._deaths - 1))
            if self._closing.wait(pause):
                return ""
            try:
                self.executor.start()
            except WorkerDied as again:
                error = again
            except OmniReelError as other:
                # Such as no memory for the model, which another process may hold for a moment.
                error = WorkerDied(self.name, f"could not be started again: {other.message}", hint=other.hint)
            except Exception as unforeseen:
                logger.exception("replica %s could not be started again", self.name)
                error = WorkerDied(self.name, f"could not be started again ({type(unforeseen).__name__})")
            else:
                self._restarts += 1
                self._is_ready()
                self._restarted()
                logger.warning("replica %s runs again, restarted %d times so far", self.name, self._restarts)
                return ""

    def _is_ready(self) -> None:
        self._ready_since = time.monotonic()
        self.state = LaneState.READY

    def _lost(self, ticket: Ticket, error: WorkerDied) -> None:
        del self._mine[ticket.request_id]
        problem = ticket.problem("when its worker died")
        self._scheduler.ended(self, ticket)
        # One that had not begun was only on its way to a worker that was dead already, and that is once no fault of its own.
        allowed = self._recovery.reruns + (not ticket.has_begun)
        if problem is None and ticket.runs <= allowed:
            logger.warning("%s is run again, for its worker died", ticket.request_id)
            self._scheduler.again(ticket)
            return
        told = problem or WorkerDied(self.name, str(error.details["how"]), error.details["last_lines"])
        self._finished(ticket, told, self)
