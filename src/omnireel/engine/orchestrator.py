"""The engine: takes requests, runs them one after another on its own thread, and finishes files beside the next run.

Failure of one request never reaches another: every way a request can end is one event to its own listener.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from omnireel.engine.build import build_context, engine_facts
from omnireel.engine.executors.inline import InlineExecutor
from omnireel.engine.front import Front
from omnireel.engine.recipe import build_recipe
from omnireel.engine.result import GenerationResult
from omnireel.engine.runner import bug
from omnireel.engine.scheduler import Scheduler
from omnireel.engine.ticket import Ticket
from omnireel.errors import Cancelled, EngineError, InvalidRequest, OmniReelError
from omnireel.media.encode import check_writable, write_clip
from omnireel.media.prepare import media_facts, prepared
from omnireel.models import checks
from omnireel.models.discover import admit
from omnireel.observe.log import request_scope
from omnireel.observe.metrics import Metrics
from omnireel.request import StepEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnireel.config import ResolvedConfig
    from omnireel.engine.executors import Executor
    from omnireel.engine.runner import RunReport
    from omnireel.engine.ticket import OnEvent
    from omnireel.models.protocol import Checkpoint
    from omnireel.request import GenerationRequest, Workload

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 60.0
"""How long `close` waits for the step under way; a step of the largest models takes some fifteen seconds."""

MAX_TIMEOUT_SECONDS = 1e9
_CLOSED = "the engine is closed"
_DIED = "the engine stopped on a bug; the log has the details"


class Engine:
    """One model, served in this process. Safe to use from any thread.

    Making one only reads small files, so that requests can be checked before weights are loaded by `start`.

    Raises:
        ClientError, SetupError: the model or the device of the config is not there.
    """

    def __init__(self, config: ResolvedConfig) -> None:
        self._config = config
        self._context, self._index = build_context(config)
        self._executor: Executor = InlineExecutor(self._context, device_index=self._index)
        self._scheduler = Scheduler(max_queue=config.run.max_queue)
        self._front = Front()
        self.metrics = Metrics()
        self._is_running = False
        self.metrics.watch(waiting=lambda: self._scheduler.waiting, running=lambda: self._is_running)
        self.metrics.watch_memory(self._device_name, self._free_memory)
        # A daemon, as a program that forgot to close its engine should still be able to end.
        self._thread = threading.Thread(target=self._loop, name="omnireel-engine", daemon=True)
        self._facts: Mapping[str, Any] = {}
        self._live: dict[str, Ticket] = {}
        self._live_lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._is_started = self._is_closed = False
        self._process = os.getpid()

    @property
    def checkpoint(self) -> Checkpoint:
        """The model that is served."""
        return self._context.checkpoint

    @property
    def weights_digest(self) -> str:
        """See `Pipeline.weights_digest`; known once started."""
        return self._executor.weights_digest

    @property
    def is_started(self) -> bool:
        """Whether the model is loaded and requests run."""
        return self._is_started

    def start(self) -> None:
        """Loads the model and begins to run requests; later calls wait for the first and do nothing.

        Raises:
            SetupError, OutOfMemory: the model cannot be loaded here.
            EngineError: the engine is closed.
        """
        with self._start_lock:
            self._check_open()
            if self._is_started:
                return
            self._executor.start()
            # Loading takes long enough for somebody to have closed the engine meanwhile.
            self._check_open()
            # An interpreter that ends under a running step can take the process down with it.
            atexit.register(self.close)
            self._front.start()
            self._thread.start()
            self._is_started = True

    def admit(self, request: GenerationRequest) -> Workload:
        """The request after the model's rules and a look at its output path; needs no weights.

        Raises:
            InvalidRequest: naming the field, the value and what is allowed.
        """
        output = checks.request_types(request).output
        checks.whole("preview_every", output.preview_every, 0, 1_000_000)
        if request.timeout_seconds is not None:
            checks.number("timeout_seconds", request.timeout_seconds, 0.001, MAX_TIMEOUT_SECONDS)
        if output.path is not None:
            if request.sampling.output_type == "latent":
                raise InvalidRequest("output_type", "latent", "only frames can be written to a file")
            check_writable(output.path)
        return admit(request, self.checkpoint, [media_facts(item, k) for k, item in enumerate(request.media)])

    def submit(self, request: GenerationRequest, on_event: OnEvent) -> Ticket:
        """Puts a request in line. Every event goes to `on_event`, ending with one result or error; see `Ticket`.

        Raises:
            ClientError: the request is not allowed, its id is that of one under way, or the line is full.
            EngineError: the engine is closed, has died, or was started in another process.
        """
        if self._is_elsewhere:
            hint = "make one in this process; multiprocessing does with its start method spawn"
            raise EngineError("the engine was started in another process, of which this is a fork", hint=hint)
        workload = self.admit(request)
        media = zip(request.media, workload.media_plans, strict=True)
        workload = replace(workload, media=tuple(prepared(item, plan) for item, plan in media))
        timeout = self._config.run.timeout_seconds if request.timeout_seconds is None else request.timeout_seconds
        ticket = Ticket(workload, partial(self._deliver, on_event, workload), timeout_seconds=timeout)
        with self._live_lock:
            if ticket.request_id in self._live:
                raise InvalidRequest("request_id", ticket.request_id, "a request with this id is under way")
            self._live[ticket.request_id] = ticket
        try:
            self._scheduler.submit(ticket)
        except OmniReelError as error:
            self._forget(ticket.request_id)
            self.metrics.refused(status=error.code, task=workload.task)
            raise
        return ticket

    def cancel(self, request_id: str) -> None:
        """Gives a request up, see `Ticket.cancel`; unknown and finished ones are ignored."""
        with self._live_lock:
            ticket = self._live.get(request_id)
        if ticket is not None:
            ticket.cancel()

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Cancels what waits, runs or is being written, and gives the model's memory back; later calls do nothing.

        A step cannot be interrupted: it is waited for, but no longer than this. Its request is then ended all the same,
        and the engine's thread ends by itself when the step does. Not for listeners, on whose return the engine waits.
        """
        if threading.current_thread() is self._thread or self._front.is_current_thread:
            raise EngineError("a listener cannot close the engine", hint="close it from the thread that made it")
        if self._is_elsewhere:
            # Its threads and what its locks guard are there.
            return
        with self._live_lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        for ticket in self._scheduler.close(_CLOSED):
            ticket.finish(Cancelled(ticket.request_id, _CLOSED))
        for ticket in self._under_way():
            ticket.cancel()
        if not self._wait(time.monotonic() + timeout_seconds):
            logger.warning("the engine was closed while it was at work, which goes on after %g s", timeout_seconds)
        for ticket in self._under_way():
            ticket.finish(Cancelled(ticket.request_id, _CLOSED))
        atexit.unregister(self.close)

    @property
    def _device_name(self) -> str:
        return f"{self._context.platform.name}:{self._index}"

    def _free_memory(self) -> float:
        return self._context.platform.free_memory_bytes(self._index)

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this is a fork of the process that made the engine; threads do not come along."""
        return os.getpid() != self._process

    def _wait(self, until: float) -> bool:
        """Waits for the end of a start under way and of both threads; False when that takes longer."""
        if not self._start_lock.acquire(timeout=_left(until)):
            return False
        self._start_lock.release()
        if not self._is_started:
            return True
        self._thread.join(_left(until))
        return not self._thread.is_alive() and self._front.join(_left(until))

    def _check_open(self) -> None:
        if self._is_closed:
            self._executor.close()
            raise EngineError(_CLOSED, hint="start another one")

    def _under_way(self) -> list[Ticket]:
        with self._live_lock:
            return list(self._live.values())

    def _forget(self, request_id: str) -> Ticket | None:
        with self._live_lock:
            return self._live.pop(request_id, None)

    def _deliver(
        self, on_event: OnEvent, workload: Workload, event: StepEvent | GenerationResult | OmniReelError
    ) -> None:
        if isinstance(event, StepEvent):
            self.metrics.step(event.seconds)
        else:
            ticket = self._forget(workload.request_id)
            seconds = 0.0 if ticket is None else time.monotonic() - ticket.queued_at
            status = event.code if isinstance(event, OmniReelError) else "ok"
            self.metrics.ended(status=status, task=workload.task, seconds=seconds)
        on_event(event)

    def _loop(self) -> None:
        ticket: Ticket | None = None
        try:
            # Here, for torch counts its threads for each one that calls it.
            if self._config.run.num_threads is not None:
                torch.set_num_threads(self._config.run.num_threads)
            self._facts = engine_facts(self._config, self._context, self._index)
            while (ticket := self._scheduler.next()) is not None:
                self._run(ticket)
                # Else the request and its listener stay in memory until the next one comes.
                ticket = None
        except BaseException:
            logger.exception("the engine's thread died")
            for left in (*([ticket] if ticket else []), *self._scheduler.close(_DIED)):
                left.finish(EngineError(f"request {left.request_id} failed: {_DIED}", hint="start another engine"))
        finally:
            self._executor.close()
            self._front.stop()

    def _run(self, ticket: Ticket) -> None:
        waited = time.monotonic() - ticket.queued_at
        self._is_running = True
        try:
            report = self._executor.execute(ticket, self._scheduler.expire)
        except OmniReelError as error:
            _fail(ticket, error)
            return
        finally:
            self._is_running = False
        self._scheduler.measured(ticket.workload.cost, sum(report.durations.values()))
        self._front.put(partial(self._finish, ticket, report, waited))

    def _finish(self, ticket: Ticket, report: RunReport, waited: float) -> None:
        with request_scope(ticket.request_id, "mux"):
            try:
                result = self._result(ticket, report, waited)
            except OmniReelError as error:
                _fail(ticket, error)
            except BaseException as error:
                logger.exception("request %s failed in mux", ticket.request_id)
                _fail(ticket, bug(ticket.request_id, "mux", error))
            else:
                _log_success(result)
                made = 0.0 if report.output.frames is None else ticket.workload.num_frames / ticket.workload.fps
                self.metrics.made(result.stage_durations, clip_seconds=made, counts=report.counts)
                self.metrics.peak(self._device_name, report.peak_memory_mb * 2**20)
                ticket.finish(result)

    def _result(self, ticket: Ticket, report: RunReport, waited: float) -> GenerationResult:
        workload, output = ticket.workload, report.output
        durations = {"queue": waited, **report.durations}
        ticket.check("before mux")
        recipe = build_recipe(
            workload,
            output,
            model=self.checkpoint.name,
            weights_digest=self.weights_digest,
            engine=self._facts,
        )
        encoded = None
        if workload.output.path is not None:
            encoded = write_clip(
                output,
                workload.output.path,
                recipe=recipe if workload.output.recipe else None,
                check=partial(ticket.check, "while its file was written"),
            )
            durations["mux"] = encoded.seconds
        return GenerationResult(
            workload=workload,
            output=output,
            recipe=recipe,
            stage_durations=durations,
            peak_memory_mb=report.peak_memory_mb,
            encoded=encoded,
            profile=report.profile,
        )


def _log_success(result: GenerationResult) -> None:
    work = result.workload
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.stage_durations.items())
    size = f"{work.width}x{work.height}x{work.num_frames}"
    logger.info(
        "%s %s %s done: %s, peak %.2f GiB", work.request_id, work.task, size, spent, result.peak_memory_mb / 1024,
        extra={"fields": {
            "task": work.task, "size": size, "seconds": dict(result.stage_durations),
            "peak_memory_mb": result.peak_memory_mb,
        }},
    )  # fmt: skip


def _fail(ticket: Ticket, error: OmniReelError) -> None:
    # The words of a caller's mistake quote what he sent, which does not belong into a log.
    is_ours = isinstance(error, EngineError)
    level, why = (logging.ERROR, error.message) if is_ours else (logging.INFO, error.code)
    logger.log(level, "%s %s ended: %s", ticket.request_id, ticket.workload.task, why)
    # Where it was raised is of no use to who waits for it, and would keep what those frames hold alive.
    error.__cause__ = error.__context__ = error.__traceback__ = None
    ticket.finish(error)


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())
