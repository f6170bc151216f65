"""A pipeline of several stages: one engine a stage, each with its own model, device and line, and requests on their way from one to the next.

A request begins in every stage that reads from it alone, and in each other stage when those that it reads from have ended, or
with `async_chunk` when they hand over their first part. It fails as a whole with the first stage that fails.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from omnireel.engine.connectors.channel import Channel
from omnireel.engine.connectors.choose import build_connectors
from omnireel.engine.front import Front
from omnireel.engine.orchestrator import CLOSE_SECONDS, Engine, EngineHealth
from omnireel.engine.result import GenerationResult
from omnireel.engine.runner import bug
from omnireel.engine.scheduler import FIRST_GUESS_SECONDS
from omnireel.engine.ticket import Ticket
from omnireel.errors import Cancelled, DeadlineExceeded, EngineError, InvalidRequest, OmniReelError, QueueFull
from omnireel.models.discover import imported
from omnireel.observe.metrics import Metrics
from omnireel.request import Handover, MediaOutput, OutputSpec, StepEvent

if TYPE_CHECKING:
    from omnireel.config import ResolvedConfig
    from omnireel.engine.connectors import Connector
    from omnireel.engine.ticket import OnEvent
    from omnireel.models.protocol import Checkpoint
    from omnireel.models.topology import StageFacts
    from omnireel.observe.profile import PartProfile
    from omnireel.request import GenerationRequest, Workload

    InputProcessor: TypeAlias = Callable[[GenerationRequest, Mapping[int, MediaOutput]], GenerationRequest]

logger = logging.getLogger(__name__)

_CLOSED = "the engine is closed"
_UNBOUNDED = 2**31
"""The line before a stage: what may be in the pipeline is bounded at its door, and nothing is turned away further in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One stage. asked: what it is asked, of the user's request and the outputs that it reads."""

    number: int
    facts: StageFacts
    engine: Engine
    asked: InputProcessor


def make_engine(config: ResolvedConfig, *, default_backend: str = "uni") -> Engine | StagedEngine:
    """The engine of a config: that of its model, or one that drives several stages.

    Args:
        config: every setting.
        default_backend: see `Engine`; "mp" is for services.

    Raises:
        ClientError, SetupError: a model or a device of the config is not there.
    """
    kind = Engine if len(config.stages) == 1 else StagedEngine
    return kind(config, default_backend=default_backend)


class StagedEngine:
    """A pipeline, served as `Engine` serves a model. Safe to use from any thread.

    What a user sees of a result is that of the main stage, the last of which something leaves; what leaves others is beside it.
    """

    def __init__(self, config: ResolvedConfig, *, default_backend: str = "uni") -> None:
        self._config = config
        self._stages = tuple(_stage(config, number, default_backend) for number in range(len(config.stages)))
        self._main = next(stage for stage in reversed(self._stages) if stage.facts.final_output)
        self.metrics = Metrics()
        self.metrics.watch(waiting=lambda: self.health.waiting, running=lambda: self.health.running)
        self._room = config.run.max_queue + len(self._stages)
        self._live: dict[str, _Journey] = {}
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
        """Stages of this process one by one, for libraries are imported once; those of other processes all at once."""
        elsewhere = [stage.engine for stage in self._stages if not stage.engine.is_here]
        with ThreadPoolExecutor(max(1, len(elsewhere)), thread_name_prefix="omnireel-load") as pool:
            starts = [pool.submit(engine.start) for engine in elsewhere]
            for stage in self._stages:
                if stage.engine.is_here:
                    stage.engine.start()
            for start in starts:
                start.result()

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
        plan = _Plan(
            stages=self._stages,
            main=self._main,
            connectors=self._connectors,
            is_chunked=self._config.stages_flags.async_chunk,
            later=self._handover.put,
        )
        journey = _Journey(plan, request, ticket, [work.num_steps for work in workloads])
        with self._lock:
            if self._is_closed:
                raise EngineError(_CLOSED, hint="start another one")
            if ticket.request_id in self._live:
                raise InvalidRequest("request_id", ticket.request_id, "a request with this id is under way")
            if len(self._live) >= self._room:
                self.metrics.refused(status=QueueFull.code, task=main.task)
                raise QueueFull(len(self._live), FIRST_GUESS_SECONDS)
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

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Cancels everything and gives the models' memory back; see `Engine.close`."""
        if self._handover.is_current_thread:
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
            stage.engine.admit(_for_stage(stage, request, {}, is_main=stage is self._main)) for stage in self._stages
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What all journeys have in common.

    connectors: by number of the stage that receives, where arrays do not go with the request itself.
    later: runs a job beside the engines' threads, which must not wait for each other.
    """

    stages: tuple[_Stage, ...]
    main: _Stage
    connectors: Mapping[int, Connector]
    is_chunked: bool
    later: Callable[[Callable[[], None]], None]


class _Journey:
    """One request on its way through the stages.

    Args:
        ticket: the user's; every stage has one of its own.
        planned: steps of each stage, as far as is known before it runs.
    """

    def __init__(self, plan: _Plan, request: GenerationRequest, ticket: Ticket, planned: list[int]) -> None:
        self.ticket = ticket
        self._plan = plan
        self._request = request
        self._planned = planned
        self._done = [0] * len(plan.stages)
        self._handed = [0] * len(plan.stages)
        self._begun: set[int] = set()
        self._flowing: set[int] = set()
        self._results: dict[int, GenerationResult] = {}
        self._inner: dict[int, Ticket] = {}
        self._channels = {number: Channel() for number in plan.connectors}
        self._failure: OmniReelError | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Submits the request to the stages that read from it alone.

        Raises:
            OmniReelError: a stage does not take it; nothing of it is under way then.
        """
        self.ticket.withdraw = self._withdraw
        for stage in self._ready():
            try:
                self._submit(stage)
            except OmniReelError:
                self._stop()
                self.forget()
                raise

    def forget(self) -> None:
        """Lets go what is handed over; for when the request has ended."""
        for number, channel in self._channels.items():
            self._plan.connectors[number].withdraw(channel)

    def _ready(self) -> list[_Stage]:
        """Stages that can begin now, each only once."""
        with self._lock:
            there = self._results.keys() | self._flowing
            found = [
                stage
                for stage in self._plan.stages
                if stage.number not in self._begun and there.issuperset(stage.facts.inputs)
            ]
            self._begun |= {stage.number for stage in found}
        return found

    def _submit(self, stage: _Stage) -> None:
        if self.ticket.is_finished:
            # Another stage has failed.
            return
        self.ticket.check(f"before stage {stage.facts.name}")
        deadline = self.ticket.deadline
        left = None if deadline is None else max(0.001, deadline - time.monotonic())
        inner = stage.engine.submit(replace(self._asked(stage), timeout_seconds=left), partial(self._heard, stage))
        with self._lock:
            self._inner[stage.number] = inner
        if self.ticket.is_cancelled or self.ticket.is_finished:
            inner.cancel()

    def _asked(self, stage: _Stage) -> GenerationRequest:
        """What a stage is asked, with its arrays or the inbox where they arrive."""
        is_main, plan = stage is self._plan.main, self._plan
        if plan.is_chunked:
            asked = _for_stage(stage, self._request, {}, is_main=is_main)
        else:
            outputs = {source: self._results[source].output for source in stage.facts.inputs}
            asked = _for_stage(stage, self._request, outputs, is_main=is_main)
        connector = plan.connectors.get(stage.number)
        if connector is None or not (plan.is_chunked or asked.tensors):
            return asked
        channel = self._channels[stage.number]
        if not plan.is_chunked:
            channel.send(Handover(tensors=asked.tensors, is_last=True))
        output = replace(asked.output, recipe=False)
        return replace(asked, tensors={}, inbox=connector.publish(channel), output=output)

    def _heard(self, stage: _Stage, event: StepEvent | GenerationResult | OmniReelError) -> None:
        """What a stage's engine tells, on its threads."""
        if isinstance(event, StepEvent):
            if event.chunk is not None and self._is_new(stage, event):
                self._hand_on(stage, Handover(tensors=event.chunk))
                self._flow(stage)
            self.ticket.emit(self._counted(stage, event))
        elif isinstance(event, GenerationResult):
            if self._plan.is_chunked:
                self._hand_on(stage, Handover(is_last=True))
            self._plan.later(partial(self._ended, stage, event))
        else:
            self._fail(stage, event)

    def _is_new(self, stage: _Stage, event: StepEvent) -> bool:
        """Whether this part was not handed on before; a stage whose worker died makes the same ones once more."""
        with self._lock:
            is_new = event.index > self._handed[stage.number]
            self._handed[stage.number] = max(event.index, self._handed[stage.number])
        return is_new

    def _hand_on(self, stage: _Stage, part: Handover) -> None:
        for follower in self._plan.stages:
            if stage.number in follower.facts.inputs and follower.number in self._channels:
                self._channels[follower.number].send(part)

    def _flow(self, stage: _Stage) -> None:
        """Lets those begin that wait for the first part."""
        with self._lock:
            is_first = stage.number not in self._flowing
            self._flowing.add(stage.number)
        if is_first:
            self._plan.later(self._go_on)

    def _counted(self, stage: _Stage, event: StepEvent) -> StepEvent:
        """The event with its place among the steps of all stages."""
        with self._lock:
            number = stage.number
            self._done[number] = event.index
            # A stage that still receives knows of no more steps than it was given parts for.
            self._planned[number] = max(event.index, self._planned[number] if self._plan.is_chunked else event.total)
            index, total = sum(self._done), sum(self._planned)
        return replace(event, stage=stage.facts.name, index=index, total=total, chunk=None)

    def _ended(self, stage: _Stage, result: GenerationResult) -> None:
        """Hands what a stage made to those that wait for it, or ends the journey; on the hand-over's thread."""
        with self._lock:
            self._results[stage.number] = result
            self._inner.pop(stage.number, None)
            self._done[stage.number] = self._planned[stage.number]
            is_last = len(self._results) == len(self._plan.stages)
        if is_last:
            self.ticket.finish(self._whole())
        else:
            self._go_on()

    def _go_on(self) -> None:
        for follower in self._ready():
            try:
                self._submit(follower)
            except OmniReelError as error:
                self._fail(follower, error)
                return
            except Exception as error:
                logger.exception("request %s failed before stage %s", self.ticket.request_id, follower.facts.name)
                self._fail(follower, bug(self.ticket.request_id, f"the input of stage {follower.facts.name}", error))
                return

    def _whole(self) -> GenerationResult:
        """The main stage's result, with what all of them took."""
        durations: dict[str, float] = {}
        profile: dict[str, PartProfile] = {}
        for stage in self._plan.stages:
            result = self._results[stage.number]
            prefix = "" if stage is self._plan.main else f"{stage.facts.name}."
            durations |= {prefix + name: seconds for name, seconds in result.stage_durations.items()}
            profile |= {prefix + name: part for name, part in result.profile.items()}
        main = self._plan.main
        others = [stage for stage in self._plan.stages if stage.facts.final_output and stage is not main]
        made = self._results[main.number]
        return replace(
            made,
            # What was handed over is not in a recipe, so nothing could be made again of it.
            recipe=None if made.workload.tensors or made.workload.inbox else made.recipe,
            stage_durations=durations,
            profile=profile,
            peak_memory_mb=max(result.peak_memory_mb for result in self._results.values()),
            outputs={stage.facts.name: self._results[stage.number].output for stage in others},
        )

    def _fail(self, stage: _Stage, error: OmniReelError) -> None:
        if isinstance(error, DeadlineExceeded):
            # The stage knows only what was left of the time for it.
            where = f"{error.details['where']}, stage {stage.facts.name}"
            error = DeadlineExceeded(self.ticket.request_id, self.ticket.timeout_seconds or 0.0, where)
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
        # Then nobody is left to be told that a hand-over broke off.
        self._stop()
        self.ticket.finish(error)

    def _withdraw(self, _: Ticket) -> None:
        self._stop()

    def _stop(self) -> None:
        with self._lock:
            under_way = list(self._inner.values())
        for inner in under_way:
            inner.cancel()


def _stage(config: ResolvedConfig, number: int, default_backend: str) -> _Stage:
    own = config.of_stage(number)
    alone = replace(own, run=replace(own.run, max_queue=_UNBOUNDED, timeout_seconds=None))
    engine = Engine(alone, default_backend=default_backend)
    facts = config.stages[number].facts
    return _Stage(number=number, facts=facts, engine=engine, asked=_processor(facts.input_processor))


def _processor(place: str) -> InputProcessor:
    if not place:
        return lambda request, outputs: request
    found: InputProcessor = imported(place)
    return found


def _for_stage(
    stage: _Stage, request: GenerationRequest, outputs: Mapping[int, MediaOutput], *, is_main: bool
) -> GenerationRequest:
    """What a stage is asked; where the clip goes is for the main stage alone."""
    asked = stage.asked(request, outputs)
    if not is_main:
        return replace(asked, output=OutputSpec())
    return replace(asked, output=replace(asked.output, recipe=False)) if asked.tensors else asked
