"""The engine: takes requests, has them run by its replicas, and finishes files beside the next run.

Failure of one request never reaches another: every way a request can end is one event to its own listener.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from omnireel.engine.build import worker_specs
from omnireel.engine.executors.choose import build_executors
from omnireel.engine.recipe import build_recipe
from omnireel.engine.replicas import Lane, LaneState, Recovery, ReplicaHealth
from omnireel.engine.result import GenerationResult
from omnireel.engine.runner import bug
from omnireel.engine.scheduler import Scheduler
from omnireel.engine.ticket import Ticket
from omnireel.engine.tracing import Traces
from omnireel.errors import Cancelled, EngineError, InvalidRequest, OmniReelError, Unavailable
from omnireel.media.encode import check_writable, write_clip
from omnireel.media.prepare import media_facts, prepared
from omnireel.models import checks
from omnireel.models.discover import admit
from omnireel.observe.log import request_scope
from omnireel.observe.metrics import Metrics
from omnireel.request import StepEvent

if TYPE_CHECKING:
    from pathlib import Path

    from omnireel.config import ResolvedConfig
    from omnireel.engine.child import EarlyChildren
    from omnireel.engine.executors import Outcome
    from omnireel.engine.runner import RunReport
    from omnireel.engine.ticket import OnEvent
    from omnireel.models.protocol import Checkpoint
    from omnireel.request import GenerationRequest, Workload

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 60.0
"""How long `close` waits for the step under way; a step of the largest models takes some fifteen seconds."""

MAX_TIMEOUT_SECONDS = 1e9
_CLOSED = "the engine is closed"
_KILL_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """The engine as it is now. is_live: it takes requests and some replica runs or will run them; is_ready: one runs now."""

    is_live: bool
    is_ready: bool
    waiting: int
    running: int
    replicas: tuple[ReplicaHealth, ...]


class Engine:
    """One model, served in this process. Safe to use from any thread.

    Making one only reads small files, so that requests can be checked before weights are loaded by `start`.

    Args:
        config: every setting.
        default_backend: the executor where `distributed_executor_backend` is not set: "uni", or "mp" for a service.
        metrics: where figures go, for an engine that is part of another; None for its own.
        early: processes for workers that were started while this one still imported.

    Raises:
        ClientError, SetupError: the model or the device of the config is not there.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        *,
        default_backend: str = "uni",
        metrics: Metrics | None = None,
        early: EarlyChildren | None = None,
    ) -> None:
        self._config = config
        specs = worker_specs(config)
        self._checkpoint = specs[0].context.checkpoint
        self._scheduler = Scheduler(
            max_queue=config.run.max_queue,
            max_batch=specs[0].max_batch,
            batch_wait_seconds=config.batch.request_batch_max_wait_ms / 1000,
        )
        self._scheduler.set_lanes(len(specs))
        process = config.process
        recovery = Recovery(max_deaths=process.max_worker_deaths, reruns=int(process.rerun_interrupted))
        executors = build_executors(config, specs, default=default_backend, early=early)
        self._lanes = [
            Lane(
                spec,
                executor,
                self._scheduler,
                recovery,
                finished=self._ran,
                gone=self._lost,
                restarted=partial(self._restarted, config.stages[0].facts.name),
                is_joined=config.batch.step_execution,
            )
            for spec, executor in zip(specs, executors, strict=True)
        ]
        self._traces = Traces(config.run.torch_profiler_dir, config.run.torch_profiler_max_seconds, self._lanes)
        self._clock = threading.Thread(target=self._scheduler.watch, name="omnireel-clock", daemon=True)
        self.metrics = metrics or Metrics()
        self.metrics.watch(waiting=lambda: self._scheduler.waiting, running=lambda: self._scheduler.running)
        self._watch_memory()
        self._lanes_left = len(self._lanes)
        self._live: dict[str, Ticket] = {}
        self._live_lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._is_started = self._is_closed = False
        self._process = os.getpid()

    @property
    def checkpoint(self) -> Checkpoint:
        """The model that is served."""
        return self._checkpoint

    @property
    def weights_digest(self) -> str:
        """See `Pipeline.weights_digest`; known once started."""
        return self._lanes[0].executor.weights_digest

    @property
    def is_started(self) -> bool:
        """Whether the model is loaded and requests run."""
        return self._is_started

    @property
    def is_here(self) -> bool:
        """Whether the model is in this process, with all that it is given."""
        return all(lane.executor.is_here for lane in self._lanes)

    @property
    def is_alive(self) -> bool:
        """Whether the engine is started and still takes requests: not closed, and not all of its replicas given up."""
        return self._is_started and not self._scheduler.is_closed

    @property
    def is_ready(self) -> bool:
        """Whether some replica runs requests now."""
        return self.health.is_ready

    @property
    def health(self) -> EngineHealth:
        """The engine as it is now; cheap, and never waits."""
        replicas = tuple(lane.health for lane in self._lanes)
        return EngineHealth(
            is_live=self.is_alive,
            is_ready=self.is_alive and any(replica.state is LaneState.READY for replica in replicas),
            waiting=self._scheduler.waiting,
            running=self._scheduler.running,
            replicas=replicas,
        )

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
            try:
                self._load()
            except BaseException:
                # Closing kills a worker that loads; what that looked like from here is of no interest.
                self._check_open()
                raise
            # Loading takes long enough for somebody to have closed the engine meanwhile.
            self._check_open()
            # An interpreter that ends under a running step can take the process down with it.
            atexit.register(self.close)
            for lane in self._lanes:
                lane.start()
            self._is_started = True

    def _load(self) -> None:
        """Loads every replica, all at once where there are several; the first that fails ends the others."""
        executors = [lane.executor for lane in self._lanes]
        if len(executors) == 1:
            executors[0].start()
            return
        pool = ThreadPoolExecutor(len(executors), thread_name_prefix="omnireel-load")
        starts = [pool.submit(executor.start) for executor in executors]
        try:
            for start in wait(starts, return_when=FIRST_EXCEPTION).done:
                start.result()
        except BaseException:
            for executor in executors:
                executor.kill()
            pool.shutdown()
            for executor in executors:
                executor.close()
            raise
        pool.shutdown()

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
        timeout = self._config.run.timeout_seconds if request.timeout_seconds is None else request.timeout_seconds
        listener = partial(self._deliver, on_event, workload)
        ticket = Ticket(workload, listener, timeout_seconds=timeout, priority=request.priority)
        with self._live_lock:
            if ticket.request_id in self._live:
                raise InvalidRequest("request_id", ticket.request_id, "a request with this id is under way")
            self._live[ticket.request_id] = ticket
        try:
            # The place first: media of many requests, decoded before anybody asked for a place, would fill the memory.
            self._scheduler.submit(ticket, is_ready=not request.media)
            if timeout is not None:
                self._keep_time()
            if request.media:
                self._prepare(request, ticket)
        except BaseException as error:
            if ticket.is_finished and isinstance(error, OmniReelError):
                # It was cancelled, or its time ran out, while its media were read: its listener has been told.
                return ticket
            self._scheduler.remove(ticket)
            self._forget(ticket.request_id)
            if isinstance(error, OmniReelError):
                self.metrics.refused(status=error.code, task=workload.task)
            raise
        return ticket

    def _prepare(self, request: GenerationRequest, ticket: Ticket) -> None:
        """Decodes the request's media, unless it ends meanwhile, and lets it run."""
        media = []
        for item, plan in zip(request.media, ticket.workload.media_plans, strict=True):
            if ticket.is_finished:
                return
            media.append(prepared(item, plan))
        ticket.workload = replace(ticket.workload, media=tuple(media))
        self._scheduler.ready(ticket)

    def _keep_time(self) -> None:
        with self._live_lock:
            if not self._clock.is_alive() and not self._is_closed:
                with suppress(RuntimeError):
                    self._clock.start()

    def cancel(self, request_id: str) -> None:
        """Gives a request up, see `Ticket.cancel`; unknown and finished ones are ignored."""
        with self._live_lock:
            ticket = self._live.get(request_id)
        if ticket is not None:
            ticket.cancel()

    def start_profile(self) -> None:
        """Begins to record what every replica computes, into the folder that the settings name.

        Raises:
            Conflict: the settings name none, or a profile is under way.
            Unavailable: the engine is not started, or closed.
            EngineError: a replica cannot; none records then.
        """
        if not self.is_alive:
            raise Unavailable("the engine does not run")
        self._traces.start()

    def stop_profile(self) -> tuple[Path, ...]:
        """Ends that; the traces, one for each process that computes, which lie where it runs.

        Raises:
            Conflict: no profile is under way.
            EngineError: no trace could be written.
        """
        return self._traces.stop()

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Cancels what waits, runs or is being written, and gives the model's memory back; later calls do nothing.

        A step cannot be interrupted: it is waited for, but no longer than this. Its request is then ended all the same. A
        worker is killed then; a thread of this process ends by itself when the step does. Not for listeners, on whose
        return the engine waits.
        """
        if self.is_current_thread:
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
        for lane in self._lanes:
            lane.close()
        for ticket in self._under_way():
            ticket.cancel()
        if not self._wait(time.monotonic() + timeout_seconds):
            for lane in self._lanes:
                lane.executor.kill()
        if not self._wait(time.monotonic() + min(timeout_seconds, _KILL_SECONDS)):
            logger.warning("the engine was closed while it was at work, which goes on after %g s", timeout_seconds)
        for ticket in self._under_way():
            ticket.finish(Cancelled(ticket.request_id, _CLOSED))
        atexit.unregister(self.close)

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is a thread of the engine, as a listener is."""
        return threading.current_thread() is self._clock or any(lane.is_current_thread for lane in self._lanes)

    @property
    def retry_after_seconds(self) -> float:
        """After how long a place in line should be free, were it full now."""
        return self._scheduler.retry_after()

    def _watch_memory(self) -> None:
        """Only where the model is in this process: to ask a card is to take some of its memory."""
        for lane in self._lanes:
            platform, index = lane.spec.context.platform, lane.spec.device_index
            if lane.executor.is_here:
                self.metrics.watch_memory(lane.device_name, partial(platform.free_memory_bytes, index))

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this is a fork of the process that made the engine; threads do not come along."""
        return os.getpid() != self._process

    def _wait(self, until: float) -> bool:
        """Waits for the end of a start under way and of both threads; False when that takes longer."""
        if self._clock.is_alive():
            self._clock.join(_left(until))
        if not self._start_lock.acquire(timeout=_left(until)):
            return False
        self._start_lock.release()
        if not self._is_started:
            return True
        return all(lane.join(_left(until)) for lane in self._lanes)

    def _check_open(self) -> None:
        if self._is_closed:
            for lane in self._lanes:
                lane.executor.close()
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

    def _lost(self, lane: Lane, reason: str) -> None:
        """A lane has ended, for a reason unless the engine is closed. The others go on; the last one takes all with it."""
        if reason:
            logger.error("replica %s is given up: %s", lane.name, reason)
        with self._live_lock:
            self._lanes_left -= 1
            left = self._lanes_left
        self._scheduler.set_lanes(left)
        if left:
            return
        for ticket in self._scheduler.close(reason or _CLOSED):
            hint = "start another engine"
            ticket.finish(EngineError(f"request {ticket.request_id} failed: {reason or _CLOSED}", hint=hint))

    def _restarted(self, stage: str) -> None:
        self.metrics.restarted(stage)

    def _ran(self, ticket: Ticket, outcome: Outcome, lane: Lane) -> None:
        """What a lane has made of a request; on the lane's thread."""
        if isinstance(outcome, OmniReelError):
            _fail(ticket, outcome)
            return
        self._scheduler.measured(ticket.workload.cost, sum(outcome.durations.values()))
        lane.front.put(partial(self._finish, ticket, outcome, lane))

    def _finish(self, ticket: Ticket, report: RunReport, lane: Lane) -> None:
        with request_scope(ticket.request_id, f"{lane.spec.stage}.mux".lstrip(".")):
            try:
                result = self._result(ticket, report, lane)
            except OmniReelError as error:
                _fail(ticket, error)
            except BaseException as error:
                logger.exception("request %s failed in mux", ticket.request_id)
                _fail(ticket, bug(ticket.request_id, "mux", error))
            else:
                _log_success(result)
                made = 0.0 if report.output.frames is None else ticket.workload.num_frames / ticket.workload.fps
                self.metrics.made(result.stage_durations, clip_seconds=made, counts=report.counts)
                self.metrics.peak(lane.device_name, report.peak_memory_mb * 2**20)
                ticket.finish(result)

    def _result(self, ticket: Ticket, report: RunReport, lane: Lane) -> GenerationResult:
        workload, output = ticket.workload, report.output
        durations = {"queue": ticket.waited_seconds, **report.durations}
        ticket.check("before mux")
        recipe = build_recipe(
            workload,
            output,
            model=self.checkpoint.name,
            weights_digest=lane.executor.weights_digest,
            engine=lane.facts,
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
