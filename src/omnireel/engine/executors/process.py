"""The model in a process of its own: its crash, its memory and its Python are not the engine's.

A worker that dies is seen at once, since its socket closes; one that hangs after `worker_timeout_seconds` without a sign of
life, or `step_timeout_seconds` without progress. Both are killed and told as WorkerDied; who drives decides what then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnireel.engine.child import Child
from omnireel.engine.link import LinkClosed, SocketLink
from omnireel.engine.message import Kind, StageMessage
from omnireel.engine.runner import bug
from omnireel.errors import EngineError, OmniReelError, WorkerDied

if TYPE_CHECKING:
    from pathlib import Path

    from omnireel.engine.build import WorkerSpec
    from omnireel.engine.executors import Feed
    from omnireel.engine.link import Launch, Link
    from omnireel.engine.ticket import Ticket
    from omnireel.observe.trace import TraceOrder

logger = logging.getLogger(__name__)

SEND_SECONDS = 20.0
"""How long a worker may leave a full socket unread; its reader does nothing else."""

START_SECONDS = 1800.0
"""The least patience with a worker that loads, unless the settings say less: large checkpoints lie on slow disks."""

LOADING_SILENT_SECONDS = 30.0
"""The least that a worker may be silent while it loads: it hears nothing while large libraries are imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a worker is waited for, in seconds.

    start: until its model is loaded; silent: without a sign of life; step: without progress of a request, None for ever;
    batch: until the requests that were begun together have ended; close: for its own end.
    """

    start: float = START_SECONDS
    silent: float = 30.0
    step: float | None = None
    batch: float | None = None
    close: float = 15.0


class ProcessExecutor:
    """See `Executor`. The worker may be anywhere that `launch` puts it.

    Args:
        spec: what the worker builds.
        launch: starts a worker; a new process of this machine by default.
    """

    def __init__(self, spec: WorkerSpec, *, patience: Patience, launch: Launch | None = None) -> None:
        self._spec = spec
        self._patience = patience
        self._name = spec.name
        self._launch: Launch = launch or (lambda: SubprocessLink(Child(self._name, spec.env, spec.worker_cls)))
        self._link: Link | None = None
        self._digest = ""
        self._facts: Mapping[str, Any] = {}
        # Time that was spent waiting for the worker; what the engine itself took does not count.
        self._silent = self._stuck = self._batch = 0.0
        self._begun: dict[str, float] = {}
        self._is_pinged = self._is_loaded = self._has_stepped = False
        self._is_killed = threading.Event()
        self._profiles: deque[Future[tuple[Path, ...]]] = deque()

    @property
    def is_here(self) -> bool:
        """It does not."""
        return False

    @property
    def weights_digest(self) -> str:
        """See `Executor.weights_digest`."""
        return self._digest

    @property
    def pids(self) -> tuple[int, ...]:
        """See `Executor.pids`."""
        link = self._link
        return () if link is None else link.pids

    def facts(self) -> Mapping[str, Any]:
        """See `Executor.facts`; the worker told them."""
        return self._facts

    def start(self) -> None:
        """Starts a worker and waits until its model is loaded.

        Raises:
            WorkerDied: it ended, hung or took too long; with the last lines that it wrote.
        """
        self._silent = self._stuck = 0.0
        self._is_pinged = self._is_loaded = self._has_stepped = False
        until = time.monotonic() + self._patience.start
        try:
            self._link = self._launch()
        except (OSError, RuntimeError) as error:
            # No more processes, threads, descriptors or memory now, which may be otherwise in a moment.
            raise WorkerDied(self._name, f"could not be started: {error}") from error
        try:
            self._send(StageMessage(kind=Kind.LOAD, body=self._spec))
            while (message := self._receive(is_timed=False)) is None or message.kind is not Kind.READY:
                if message is not None and message.kind is Kind.FAILED:
                    raise message.body
                if self._is_killed.is_set():
                    raise self._died("was ended while it loaded its model")
                if time.monotonic() > until:
                    raise self._died(f"did not load its model in {self._patience.start:g} s")
        except BaseException:
            self._drop()
            raise
        self._is_loaded = True
        self._digest, self._facts = message.body

    def execute(self, tickets: Sequence[Ticket], feed: Feed) -> None:
        """See `Executor.execute`."""
        if self._link is None:
            raise EngineError("the executor is not started")
        self._stuck = self._batch = 0.0
        self._begun.clear()
        under_way: dict[str, Ticket] = {}
        key = tickets[0].workload.batch_key
        self._run(tickets, under_way, feed)
        while under_way:
            feed.pause()
            if joined := feed.more(key, self._spec.max_batch - len(under_way)):
                self._run(joined, under_way, feed)
            message = self._receive(is_timed=True)
            ticket = None if message is None else under_way.get(_id_of(message))
            if message is None or ticket is None:
                continue
            ticket.has_begun = True
            if message.kind is Kind.STEP:
                self._has_stepped = True
                ticket.emit(message.body)
            elif message.kind in (Kind.DONE, Kind.FAILED):
                under_way.pop(ticket.request_id)
                self._begun.pop(ticket.request_id)
                ticket.withdraw = None
                feed.done(ticket, message.body)
            # Else a whole clip stays in memory while the next one is waited for.
            del message

    def check(self, waited_seconds: float) -> None:
        """See `Executor.check`."""
        if self._link is not None:
            self._receive(is_timed=False, waited_seconds=waited_seconds)

    def profile(self, order: TraceOrder | None) -> Future[tuple[Path, ...]]:
        """See `Executor.profile`; whoever receives hears the answer."""
        answer: Future[tuple[Path, ...]] = Future()
        link = self._link
        try:
            if link is None or not self._is_loaded:
                raise LinkClosed("it is not there")
            self._profiles.append(answer)
            link.send(StageMessage(kind=Kind.PROFILE, body=order))
        except LinkClosed as error:
            with suppress(ValueError):
                self._profiles.remove(answer)
            if not answer.done():
                answer.set_exception(WorkerDied(self._name, f"cannot be profiled: {error}"))
        return answer

    def kill(self) -> None:
        """See `Executor.kill`; who receives finds out."""
        self._is_killed.set()
        link = self._link
        if link is not None:
            link.kill()

    def close(self) -> None:
        """Tells the worker to end, waits, and kills it when it takes too long."""
        link, self._link = self._link, None
        if link is None:
            return
        self._unprofiled(WorkerDied(self._name, "was closed"))
        try:
            link.send(StageMessage(kind=Kind.CLOSE))
        except LinkClosed:
            link.kill()
        if not link.close(self._patience.close):
            logger.warning("worker %s did not end in %g s and was killed", self._name, self._patience.close)

    def _run(self, tickets: Sequence[Ticket], under_way: dict[str, Ticket], feed: Feed) -> None:
        now = time.monotonic()
        body = [(ticket.workload, ticket.timeout_seconds, now - ticket.queued_at) for ticket in tickets]
        try:
            self._send(StageMessage(kind=Kind.RUN, body=body))
        except (TypeError, ValueError, RecursionError, MemoryError) as error:
            if len(tickets) == 1:
                feed.done(tickets[0], self._unsent(tickets[0], error))
                return
            # Whose fault it is comes out when each is sent alone.
            for ticket in tickets:
                self._run([ticket], under_way, feed)
            return
        under_way.update({ticket.request_id: ticket for ticket in tickets})
        self._begun.update({ticket.request_id: self._batch for ticket in tickets})
        for ticket in tickets:
            ticket.withdraw = self._cancel
            if ticket.is_cancelled:
                self._cancel(ticket)

    def _unsent(self, ticket: Ticket, error: Exception) -> OmniReelError:
        """What the caller is told of a request that could not be put into a message."""
        where = "hand-over to its worker"
        out_of_memory = self._spec.context.platform.out_of_memory(error, where, self._spec.device_index)
        if out_of_memory is not None:
            return out_of_memory
        logger.error("request %s cannot be sent to its worker", ticket.request_id, exc_info=error)
        return bug(ticket.request_id, where, error)

    def _cancel(self, ticket: Ticket) -> None:
        link = self._link
        if link is not None:
            try:
                link.send(StageMessage(kind=Kind.CANCEL, request_id=ticket.request_id))
            except LinkClosed:
                # Who receives will find out, and end the request with it.
                logger.debug("worker %s is gone", self._name)

    def _send(self, message: StageMessage) -> None:
        assert self._link is not None
        try:
            self._link.send(message)
        except LinkClosed as error:
            raise self._died(f"takes nothing any more ({error})", is_hung=False) from None

    def _receive(self, *, is_timed: bool, waited_seconds: float | None = None) -> StageMessage | None:
        """The next message but for signs of life; None now and then, or at once where the wait lies behind."""
        assert self._link is not None
        tick, start = min(0.25, self._patience.silent / 4), time.monotonic()
        try:
            message = self._link.receive(tick if waited_seconds is None else 0.0)
        except LinkClosed:
            raise self._died("broke the connection off", is_hung=False) from None
        # Longer than it was to be is how long this process itself stood still, which is no fault of the worker's.
        seconds = min(time.monotonic() - start, 2 * tick) if waited_seconds is None else waited_seconds
        if is_timed:
            self._batch += seconds
            # Since the oldest of those that run: others may join them for as long as there are any.
            oldest = min(self._begun.values(), default=self._batch)
            if self._patience.batch is not None and self._batch - oldest > self._patience.batch:
                raise self._died(f"did not end its batch in {self._patience.batch:g} s")
        if message is None:
            self._waited(seconds, is_timed=is_timed)
            return None
        self._silent, self._is_pinged = 0.0, False
        if message.kind is Kind.PONG:
            return None
        if message.kind is Kind.PROFILED:
            self._profiled(message.body)
            return None
        self._stuck = 0.0
        return message

    def _profiled(self, body: tuple[Path, ...] | OmniReelError) -> None:
        answer = self._profiles.popleft()
        if isinstance(body, OmniReelError):
            answer.set_exception(body)
        else:
            answer.set_result(body)

    def _unprofiled(self, error: WorkerDied) -> None:
        """Whoever waits for a trace of a worker that is gone."""
        while self._profiles:
            self._profiles.popleft().set_exception(error)

    def _waited(self, seconds: float, *, is_timed: bool) -> None:
        self._silent += seconds
        self._stuck += seconds if is_timed else 0.0
        limit = self._patience.silent if self._is_loaded else max(self._patience.silent, LOADING_SILENT_SECONDS)
        if self._silent > limit:
            raise self._died(f"gave no sign of life for {limit:g} s")
        step = self._step_limit
        if step is not None and self._stuck > step:
            raise self._died(f"made no progress for {step:g} s")
        if self._silent > self._patience.silent / 3 and not self._is_pinged:
            self._is_pinged = True
            self._send(StageMessage(kind=Kind.PING))

    @property
    def _step_limit(self) -> float | None:
        """How long there may be no progress. What a model compiles it compiles in its first step, as if it still loaded."""
        step, context = self._patience.step, self._spec.context
        if step is None or self._has_stepped or not context.acceleration.is_on("compile_blocks", context.platform.name):
            return step
        return max(step, self._patience.start)

    def _died(self, how: str, *, is_hung: bool = True) -> WorkerDied:
        """Ends what is left of the worker; the error that tells of it."""
        link, self._link = self._link, None
        assert link is not None
        if is_hung:
            link.kill()
        is_own = link.close(self._patience.close if is_hung else 1.0) and not is_hung
        words, lines = link.epitaph()
        error = WorkerDied(self._name, f"died: {words}" if is_own else how, lines)
        self._unprofiled(error)
        return error

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.kill()
            link.close(self._patience.close)


class SubprocessLink:
    """See `Link`: to a process of this machine."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._socket = SocketLink(child.socket, send_seconds=SEND_SECONDS)

    @property
    def pids(self) -> tuple[int, ...]:
        """See `Link.pids`."""
        return (self._child.pid,)

    def fileno(self) -> int:
        """See `SocketLink.fileno`."""
        return self._socket.fileno()

    def send(self, message: StageMessage) -> None:
        """See `Link.send`."""
        self._socket.send(message)

    def receive(self, timeout_seconds: float) -> StageMessage | None:
        """See `Link.receive`."""
        return self._socket.receive(timeout_seconds)

    def kill(self) -> None:
        """See `Link.kill`."""
        self._child.kill()

    def close(self, timeout_seconds: float) -> bool:
        """See `Link.close`."""
        return self._child.close(timeout_seconds)

    def epitaph(self) -> tuple[str, tuple[str, ...]]:
        """See `Link.epitaph`."""
        return self._child.epitaph()


def _id_of(message: StageMessage) -> str:
    return message.body.request_id if message.kind is Kind.STEP else message.request_id
