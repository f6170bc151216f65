"""A pipeline of several stages: one engine a stage, each with its own model, device and line."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from omnireel.engine.connectors.choose import build_connectors
from omnireel.engine.front import Front
from omnireel.engine.journey import Journey, Plan, Stage, for_stage
from omnireel.engine.orchestrator import CLOSE_SECONDS, Engine, EngineHealth
from omnireel.engine.result import GenerationResult
from omnireel.engine.ticket import Ticket
from omnireel.errors import Cancelled, EngineError, InvalidRequest, OmniReelError, QueueFull
from omnireel.models.discover import imported
from omnireel.observe.metrics import Metrics, PartMetrics
from omnireel.request import StepEvent

if TYPE_CHECKING:
    from pathlib import Path

    from omnireel.config import ResolvedConfig
    from omnireel.engine.child import EarlyChildren
    from omnireel.engine.connectors import Connector
    from omnireel.engine.journey import InputProcessor
    from omnireel.engine.ticket import OnEvent
    from omnireel.models.protocol import Checkpoint
    from omnireel.request import GenerationRequest, Workload

_CLOSED = "the engine is closed"
_UNBOUNDED = 2**31
"""The line before a stage: what may be in the pipeline is bounded at its door, and nothing is turned away further in."""


def make_engine(
    config: ResolvedConfig, *, default_backend: str = "uni", early: EarlyChildren | None = None
) -> Engine | StagedEngine:
    """The engine of a config: that of its model, or one that drives several stages.

    Args:
        config: every setting.
        default_backend, early: see `Engine`; "mp" is for services.

    Raises:
        ClientError, SetupError: a model or a device of the config is not there.
    """
    if len(config.stages) == 1:
        return Engine(config, default_backend=default_backend, early=early)
    return StagedEngine(config, default_backend=default_backend)


class StagedEngine:
    """A pipeline, served as `Engine` serves a model. Safe to use from any thread.

    What a user sees of a result is that of the main stage, the last of which something leaves; what leaves others is beside it.
    """

    def __init__(self, config: ResolvedConfig, *, default_backend: str = "uni") -> None:
        self._config = config
        self.metrics = Metrics()
        part = PartMetrics(self.metrics)
        self._stages = tuple(_stage(config, number, default_backend, part) for number in range(len(config.stages)))
        self._main = next(stage for stage in reversed(self._stages) if stage.facts.final_output)
        self.metrics.watch(waiting=lambda: self.health.waiting, running=lambda: self.health.running)
        self._room = config.run.max_queue + len(self._stages)
        self._live: dict[str, Journey] = {}
        self._lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._handover = Front()
        self._connectors: Mapping[int, Connector] = {}
        self._is_started = self._is_closed = False

    @property
    def checkpoint(self) -> Checkpoint:
        """The model of the main stage."""
        return self._main.engine.checkpoint

    @property
    def weights_digest(self) -> str:
        """See `Pipeline.weights_digest`; of the main stage, known once started."""
        return self._main.engine.weights_digest

    @property
    def is_started(self) -> bool:
        """Whether every stage is loaded and requests run."""
        return self._is_started

    @property
    def is_alive(self) -> bool:
        """See `Engine.is_alive`; every stage has to be."""
        return self._is_started and not self._is_closed and all(stage.engine.is_alive for stage in self._stages)

    @property
    def is_ready(self) -> bool:
        """Whether every stage has a model that runs requests now."""
        return self.health.is_ready

    @property
    def health(self) -> EngineHealth:
        """See `Engine.health`; replicas are called by stage and number, and all stages have to be ready."""
        inner = {stage.facts.name: stage.engine.health for stage in self._stages}
        live = len(self._live)
        return EngineHealth(
            is_live=self.is_alive,
            is_ready=self.is_alive and all(one.is_ready for one in inner.values()),
            waiting=max(0, live - len(self._stages)),
            running=min(live, len(self._stages)),
            replicas=tuple(
                replace(replica, name=f"{name}.{replica.name}")
                for name, one in inner.items()
                for replica in one.replicas
            ),
        )

    def start(self) -> None:
        """Loads every stage; see `Engine.start`."""
        with self._start_lock:
            if self._is_closed:
                raise EngineError(_CLOSED, hint="start another one")
            if self._is_started:
                return
            try:
                self._connectors = build_connectors(self._config, [stage.engine.is_here for stage in self._stages])
                self._load()
            except BaseException:
                for stage in self._stages:
                    stage.engine.close()
                for connector in self._connectors.values():
                    connector.close()
                raise
            self._handover.start()
            atexit.register(self.close)
            self._is_started = True

    def _load(self) -> None:
        """Stages of this process one by one, for libraries are imported once; those of other processes all at once. The first
        that fails ends the others.
        """
        elsewhere = [stage.engine for stage in self._stages if not stage.engine.is_here]
        with ThreadPoolExecutor(max(1, len(elsewhere)), thread_name_prefix="omnireel-load") as pool:
            starts = [pool.submit(engine.start) for engine in elsewhere]
            try:
                for stage in self._stages:
                    if stage.engine.is_here:
                        stage.engine.start()
                for start in wait(starts, return_when=FIRST_EXCEPTION).done:
                    start.result()
            except BaseException:
                for engine in elsewhere:
                    engine.close()
                raise

    def admit(self, request: GenerationRequest) -> Workload:
        """The request after the rules of every stage, as far as they can be asked before the first has ended.

        Raises:
            InvalidRequest: naming the field, the value and what is allowed.
        """
        return self._admitted(request)[self._main.number]

    def submit(self, request: GenerationRequest, on_event: OnEvent) -> Ticket:
        """Sends a request on its way; see `Engine.submit`. Step events count over all stages.

        Raises:
            ClientError: the request is not allowed, its id is that of one under way, or the pipeline is full.
            EngineError: the engine is closed.
        """
        workloads = self._admitted(request)
        main = workloads[self._main.number]
        # Every stage draws from the one seed that the user is told.
        request = replace(request, sampling=replace(request.sampling, seed=main.seed))
        timeout = self._config.run.timeout_seconds if request.timeout_seconds is None else request.timeout_seconds
        ticket = Ticket(main, partial(self._deliver, on_event, main), timeout_seconds=timeout)
        plan = Plan(
            stages=self._stages,
            main=self._main,
            connectors=self._connectors,
            is_chunked=self._config.stages_flags.async_chunk,
            later=self._handover.put,
        )
        journey = Journey(plan, request, ticket, [work.num_steps for work in workloads])
        with self._lock:
            if self._is_closed:
                raise EngineError(_CLOSED, hint="start another one")
            if ticket.request_id in self._live:
                raise InvalidRequest("request_id", ticket.request_id, "a request with this id is under way")
            if len(self._live) >= self._room:
                self.metrics.refused(status=QueueFull.code, task=main.task)
                # What goes through all of them goes no faster than through the slowest.
                raise QueueFull(len(self._live), max(stage.engine.retry_after_seconds for stage in self._stages))
            self._live[ticket.request_id] = journey
        try:
            journey.begin()
        except OmniReelError as error:
            with self._lock:
                self._live.pop(ticket.request_id, None)
            self.metrics.refused(status=error.code, task=main.task)
            raise
        return ticket

    def cancel(self, request_id: str) -> None:
        """Gives a request up in whatever stage it is; unknown and finished ones are ignored."""
        with self._lock:
            journey = self._live.get(request_id)
        if journey is not None:
            journey.ticket.cancel()

    def start_profile(self) -> None:
        """See `Engine.start_profile`; of every stage."""
        engines = self._profiled()
        begun: list[Engine] = []
        try:
            for engine in engines:
                engine.start_profile()
                begun.append(engine)
        except OmniReelError:
            for engine in begun:
                engine.stop_profile()
            raise

    def stop_profile(self) -> tuple[Path, ...]:
        """See `Engine.stop_profile`; in order of the stages."""
        found: list[Path] = []
        failure: OmniReelError | None = None
        for engine in self._profiled():
            try:
                found += engine.stop_profile()
            except OmniReelError as error:
                failure = error
        if failure is not None and not found:
            raise failure
        return tuple(found)

    def _profiled(self) -> list[Engine]:
        """Those of other processes, and one of this, whose trace has all that the process does."""
        engines = [stage.engine for stage in self._stages]
        here = [engine for engine in engines if engine.is_here]
        return [engine for engine in engines if engine not in here[1:]]

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Cancels everything and gives the models' memory back; see `Engine.close`."""
        if self._handover.is_current_thread or any(stage.engine.is_current_thread for stage in self._stages):
            raise EngineError("a listener cannot close the engine", hint="close it from the thread that made it")
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            live = list(self._live.values())
        if was_closed:
            return
        for journey in live:
            journey.ticket.cancel()
        until = time.monotonic() + timeout_seconds
        for stage in self._stages:
            stage.engine.close(max(0.0, until - time.monotonic()))
        if self._is_started:
            self._handover.stop()
            self._handover.join(max(0.1, until - time.monotonic()))
        for journey in live:
            journey.ticket.finish(Cancelled(journey.ticket.request_id, _CLOSED))
        for connector in self._connectors.values():
            connector.close()
        atexit.unregister(self.close)

    def _admitted(self, request: GenerationRequest) -> list[Workload]:
        return [
            stage.engine.admit(for_stage(stage, request, {}, is_main=stage is self._main)) for stage in self._stages
        ]

    def _deliver(
        self, on_event: OnEvent, workload: Workload, event: StepEvent | GenerationResult | OmniReelError
    ) -> None:
        if isinstance(event, StepEvent):
            self.metrics.step(event.seconds)
        else:
            with self._lock:
                journey = self._live.pop(workload.request_id, None)
            if journey is not None:
                journey.forget()
            seconds = 0.0 if journey is None else time.monotonic() - journey.ticket.queued_at
            status = event.code if isinstance(event, OmniReelError) else "ok"
            self.metrics.ended(status=status, task=workload.task, seconds=seconds)
            if isinstance(event, GenerationResult):
                made = 0.0 if event.frames is None else workload.num_frames / workload.fps
                self.metrics.made(event.stage_durations, clip_seconds=made, counts={})
        on_event(event)


def _stage(config: ResolvedConfig, number: int, default_backend: str, metrics: Metrics) -> Stage:
    own = config.of_stage(number)
    alone = replace(own, run=replace(own.run, max_queue=_UNBOUNDED, timeout_seconds=None))
    engine = Engine(alone, default_backend=default_backend, metrics=metrics)
    facts = config.stages[number].facts
    return Stage(number=number, facts=facts, engine=engine, asked=_processor(facts.input_processor))


def _processor(place: str) -> InputProcessor:
    if not place:
        return lambda request, outputs: request
    found: InputProcessor = imported(place)
    return found
