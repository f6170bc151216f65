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

import torch

from omnireel.engine.blocks import new_array
from omnireel.engine.custom import class_named
from omnireel.engine.executors.inline import InlineExecutor
from omnireel.engine.link import LinkClosed, SocketLink
from omnireel.engine.message import Kind, StageMessage
from omnireel.engine.runner import bug
from omnireel.engine.ticket import Ticket
from omnireel.errors import EngineError, OmniReelError, RankLost
from omnireel.observe import log
from omnireel.observe.title import set_title
from omnireel.parallel.ranks import Ranks

if TYPE_CHECKING:
    from omnireel.engine.build import WorkerSpec
    from omnireel.engine.executors import Outcome
    from omnireel.engine.link import Wire
    from omnireel.observe.trace import TraceOrder
    from omnireel.parallel import Member
    from omnireel.request import StepEvent, Workload

logger = logging.getLogger(__name__)

_FOREVER = 3600.0


def main(descriptor: int, kind: str = "") -> None:
    """The whole life of a worker process; `descriptor` is its end of the engine's socket, `kind` the setting `worker_cls`."""
    # A terminal's Ctrl-C and the SIGTERM of a service manager go to everybody, and the engine may want to finish what runs
    # first; its end, however it comes, ends the worker.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link = SocketLink(socket.socket(fileno=descriptor))
    serve(link, kind)
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking libraries apart one by one takes half a second and gives nothing back that the end of a process does not.
    os._exit(0)


def serve(link: Wire, kind: str = "") -> None:
    """Runs a worker of that class to its end; one that cannot be had is told as its model that could not be loaded."""
    try:
        made = class_named(kind, Worker)
    except ValueError as error:
        link.send(StageMessage(kind=Kind.FAILED, body=EngineError(f"there is no worker {kind} here: {error}")))
        return
    made(link).serve()


class Worker:
    """Serves one engine over one link.

    Args:
        link: the way to the engine.
        leave: ends the process; called where the engine is gone, for the main thread may be in a step of minutes.
    """

    def __init__(self, link: Wire, leave: Callable[[int], object] = os._exit) -> None:
        self._link = link
        self._leave = leave
        self._jobs: queue.SimpleQueue[list[Ticket] | WorkerSpec | int | None] = queue.SimpleQueue()
        self._live: dict[str, Ticket] = {}
        self._live_lock = threading.Lock()
        self._executor: InlineExecutor | None = None
        self._ranks: Ranks | None = None
        self._reader = threading.Thread(target=self._read, name="omnireel-worker-reader", daemon=True)

    def serve(self) -> None:
        """Loads what the first message says and runs requests until told to close."""
        self._reader.start()
        spec = self._jobs.get()
        if spec is None or isinstance(spec, list | int):
            return
        _introduce(spec)
        try:
            executor = self.load(spec)
        except Exception as error:  # noqa: BLE001 - the engine is told, whatever it is
            self._link.send(StageMessage(kind=Kind.FAILED, body=self._told(error)))
            return
        self._executor = executor
        self._link.send(StageMessage(kind=Kind.READY, body=(executor.weights_digest, dict(executor.facts()))))
        while (job := self._jobs.get()) is not None:
            if isinstance(job, int):
                if not self._joined(spec, job):
                    self._leave(1)
            elif isinstance(job, list):
                executor.execute(job, self)
            # Else what was made stays in memory until the next request comes.
            del job
        executor.close()

    def load(self, spec: WorkerSpec) -> InlineExecutor:
        """The model, ready to run. A class of one's own (`worker_cls`) prepares its process here, or changes what is loaded.

        Raises:
            OmniReelError: it cannot be loaded; the engine is told and this process ends.
        """
        if spec.member is not None:
            self._ranks = _first_joined(spec, spec.member)
        context = replace(spec.context, new_frames=new_array, ranks=self._ranks)
        executor = InlineExecutor(replace(spec, context=context))
        executor.start()
        return executor

    def _joined(self, spec: WorkerSpec, generation: int) -> bool:
        """Whether all ranks are together again, after one had left."""
        assert self._ranks is not None, "who is told of generations is a rank"
        try:
            with spec.context.platform.use(spec.device_index):
                self._ranks.join(generation)
        except RankLost as error:
            logger.error("%s", error.message)
            return False
        return True

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
        except (TypeError, ValueError, RecursionError, MemoryError) as error:
            logger.exception("what request %s came to cannot be sent", ticket.request_id)
            self._answer(ticket.request_id, bug(ticket.request_id, "hand-over", error))

    def _answer(self, request_id: str, outcome: Outcome) -> None:
        if self._ranks is not None and not self._ranks.is_joined:
            self._link.send(StageMessage(kind=Kind.LEFT))
        kind = Kind.FAILED if isinstance(outcome, OmniReelError) else Kind.DONE
        self._link.send(StageMessage(kind=kind, request_id=request_id, body=outcome))

    def _told(self, error: Exception) -> OmniReelError:
        """Why the model is not there, as the engine may tell it."""
        if isinstance(error, OmniReelError):
            return error
        logger.error("the model cannot be loaded", exc_info=error)
        whose = "omnireel" if type(self) is Worker else f"omnireel or {type(self).__qualname__}"
        hint = f"this is a bug in {whose}; the log has the details"
        return EngineError(f"loading the model failed ({type(error).__name__})", hint=hint)

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
        elif message.kind in (Kind.LOAD, Kind.JOIN):
            self._jobs.put(message.body)
        elif message.kind is Kind.ABORT:
            if self._ranks is not None:
                self._ranks.abort()
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
        if order is not None and self._ranks is not None:
            order = replace(order, name=f"{order.name}.{self._ranks.rank}")
        answer = self._executor.profile(order)
        error = answer.exception()
        self._link.send(StageMessage(kind=Kind.PROFILED, body=error or answer.result()))

    def _ticket(self, workload: Workload, timeout_seconds: float | None, waited_seconds: float) -> Ticket:
        is_heard = self._ranks is None or self._ranks.is_first
        if not is_heard:
            workload = replace(workload, output=replace(workload.output, preview_every=0))
        ticket = Ticket(workload, self._step if is_heard else _ignored, timeout_seconds=timeout_seconds)
        ticket.queued_at = time.monotonic() - waited_seconds
        ticket.on_stage = partial(self._stage, ticket.request_id) if is_heard else None
        with self._live_lock:
            self._live[ticket.request_id] = ticket
        return ticket

    def _step(self, event: StepEvent | object) -> None:
        self._link.send(StageMessage(kind=Kind.STEP, body=event))

    def _stage(self, request_id: str, where: str) -> None:
        self._link.send(StageMessage(kind=Kind.STAGE, request_id=request_id, body=where))


def _introduce(spec: WorkerSpec) -> None:
    """What log lines and `ps` call this process; of ranks the first speaks for all where all would say the same."""
    rank, level, which = spec.rank, spec.log_level, ""
    if spec.member is not None:
        rank, which = spec.rank * spec.member.size + spec.member.rank, f" rank {spec.member.rank}"
        level = "warning" if level == "info" and spec.member.rank else level
    log.configure(level, spec.log_format, rank=rank, stage=spec.stage)
    set_title(spec.context.checkpoint.name, "worker", f"{spec.name}{which}")


def _first_joined(spec: WorkerSpec, member: Member) -> Ranks:
    """The group of a rank, before its model is loaded: whoever cannot reach the others should not read gigabytes first."""
    platform = spec.context.platform
    ranks = Ranks(member, device=torch.device(spec.context.device), collectives=platform.traits.collectives)
    with platform.use(spec.device_index):
        ranks.join()
    return ranks


def _ignored(event: object) -> None:
    """What the first rank tells too."""


if __name__ == "__main__":
    main(int(sys.argv[1]))
