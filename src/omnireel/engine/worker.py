"""A worker: one process that holds a model and runs what the engine sends, until it is told to end or the engine is gone.

The main thread computes; a second one reads, so that a cancel is heard, and a sign of life given, during any step.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from omnireel.engine.blocks import new_array
from omnireel.engine.executors.inline import InlineExecutor
from omnireel.engine.link import LinkClosed, SocketLink
from omnireel.engine.message import Kind, StageMessage
from omnireel.engine.runner import bug
from omnireel.engine.ticket import Ticket
from omnireel.errors import EngineError, OmniReelError
from omnireel.observe import log
from omnireel.observe.title import set_title

if TYPE_CHECKING:
    from omnireel.engine.build import WorkerSpec
    from omnireel.engine.executors import Outcome
    from omnireel.engine.link import Wire
    from omnireel.observe.trace import TraceOrder
    from omnireel.request import StepEvent

logger = logging.getLogger(__name__)

_FOREVER = 3600.0


def main(descriptor: int) -> None:
    """The whole life of a worker process; `descriptor` is its end of the engine's socket."""
    # A terminal's Ctrl-C and the SIGTERM of a service manager go to everybody, and the engine may want to finish what runs
    # first; its end, however it comes, ends the worker.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link = SocketLink(socket.socket(fileno=descriptor))
    Worker(link).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking libraries apart one by one takes half a second and gives nothing back that the end of a process does not.
    os._exit(0)


class Worker:
    """Serves one engine over one link.

    Args:
        link: the way to the engine.
        leave: ends the process; called where the engine is gone, for the main thread may be in a step of minutes.
    """

    def __init__(self, link: Wire, leave: Callable[[int], object] = os._exit) -> None:
        self._link = link
        self._leave = leave
        self._jobs: queue.SimpleQueue[list[Ticket] | WorkerSpec | None] = queue.SimpleQueue()
        self._live: dict[str, Ticket] = {}
        self._live_lock = threading.Lock()
        self._executor: InlineExecutor | None = None
        self._reader = threading.Thread(target=self._read, name="omnireel-worker-reader", daemon=True)

    def serve(self) -> None:
        """Loads what the first message says and runs requests until told to close."""
        self._reader.start()
        spec = self._jobs.get()
        if spec is None or isinstance(spec, list):
            return
        log.configure(spec.log_level, spec.log_format, rank=spec.rank, stage=spec.stage)
        set_title(spec.context.checkpoint.name, "worker", spec.name)
        try:
            executor = self._loaded(spec)
        except OmniReelError as error:
            self._link.send(StageMessage(kind=Kind.FAILED, body=error))
            return
        self._executor = executor
        self._link.send(StageMessage(kind=Kind.READY, body=(executor.weights_digest, dict(executor.facts()))))
        while isinstance(tickets := self._jobs.get(), list):
            executor.execute(tickets, self)
            # Else what was made stays in memory until the next request comes.
            del tickets
        executor.close()

    def pause(self) -> None:
        """See `Feed.pause`; the engine keeps the time of those that wait."""

    def more(self, key: tuple[object, ...], room: int) -> Sequence[Ticket]:
        """See `Feed.more`: what has been sent meanwhile. The engine sends only what fits."""
        found: list[Ticket] = []
        while len(found) < room:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if not isinstance(job, list):
                # Told to close: everything was cancelled, and the loop in `serve` is to hear it too.
                self._jobs.put(job)
                break
            found += job
        return found

    def done(self, ticket: Ticket, outcome: Outcome) -> None:
        """See `Feed.done`."""
        with self._live_lock:
            self._live.pop(ticket.request_id, None)
        try:
            self._answer(ticket.request_id, outcome)
        except TypeError as error:
            logger.exception("what request %s came to cannot be sent", ticket.request_id)
            self._answer(ticket.request_id, bug(ticket.request_id, "hand-over", error))

    def _answer(self, request_id: str, outcome: Outcome) -> None:
        kind = Kind.FAILED if isinstance(outcome, OmniReelError) else Kind.DONE
        self._link.send(StageMessage(kind=kind, request_id=request_id, body=outcome))

    def _loaded(self, spec: WorkerSpec) -> InlineExecutor:
        executor = InlineExecutor(replace(spec, context=replace(spec.context, new_frames=new_array)))
        try:
            executor.start()
        except OmniReelError:
            raise
        except Exception as error:
            logger.exception("the model cannot be loaded")
            hint = "this is a bug in omnireel; the log has the details"
            raise EngineError(f"loading the model failed ({type(error).__name__})", hint=hint) from error
        return executor

    def _read(self) -> None:
        try:
            while True:
                message = self._link.receive(_FOREVER)
                if message is not None:
                    self._take(message)
        except LinkClosed:
            self._leave(1)
        except BaseException:
            logger.exception("the worker cannot read")
            self._leave(1)

    def _take(self, message: StageMessage) -> None:
        if message.kind is Kind.PING:
            self._link.send(StageMessage(kind=Kind.PONG))
        elif message.kind is Kind.LOAD:
            self._jobs.put(message.body)
        elif message.kind is Kind.PROFILE:
            # Writing a trace takes longer than who waits for a sign of life may be left waiting.
            threading.Thread(target=self._profile, args=[message.body], name="omnireel-worker-trace").start()
        elif message.kind is Kind.RUN:
            self._jobs.put([self._ticket(*item) for item in message.body])
        elif message.kind is Kind.CANCEL:
            with self._live_lock:
                ticket = self._live.get(message.request_id)
            if ticket is not None:
                ticket.cancel()
        elif message.kind is Kind.CLOSE:
            with self._live_lock:
                live = list(self._live.values())
            for ticket in live:
                ticket.cancel()
            self._jobs.put(None)

    def _profile(self, order: TraceOrder | None) -> None:
        assert self._executor is not None, "who may be profiled has told that it is ready"
        answer = self._executor.profile(order)
        error = answer.exception()
        self._link.send(StageMessage(kind=Kind.PROFILED, body=error or answer.result()))

    def _ticket(self, workload: object, timeout_seconds: float | None, waited_seconds: float) -> Ticket:
        ticket = Ticket(workload, self._step, timeout_seconds=timeout_seconds)  # type: ignore[arg-type]
        ticket.queued_at = time.monotonic() - waited_seconds
        ticket.on_stage = partial(self._stage, ticket.request_id)
        with self._live_lock:
            self._live[ticket.request_id] = ticket
        return ticket

    def _step(self, event: StepEvent | object) -> None:
        self._link.send(StageMessage(kind=Kind.STEP, body=event))

    def _stage(self, request_id: str, where: str) -> None:
        self._link.send(StageMessage(kind=Kind.STAGE, request_id=request_id, body=where))


if __name__ == "__main__":
    main(int(sys.argv[1]))
