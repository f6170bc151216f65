"""One request on its way through the stages of a pipeline.

It begins in every stage that reads from it alone, and in each other stage when those that it reads from have ended, or with
`async_chunk` when they hand over their first part. It fails as a whole with the first stage that fails.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from omnireel.engine.connectors.channel import Channel
from omnireel.engine.result import GenerationResult
from omnireel.engine.runner import bug
from omnireel.errors import DeadlineExceeded, OmniReelError
from omnireel.request import Handover, MediaOutput, OutputSpec, StepEvent

if TYPE_CHECKING:
    from omnireel.engine.connectors import Connector
    from omnireel.engine.orchestrator import Engine
    from omnireel.engine.ticket import Ticket
    from omnireel.models.topology import StageFacts
    from omnireel.observe.profile import PartProfile
    from omnireel.request import GenerationRequest

    InputProcessor: TypeAlias = Callable[[GenerationRequest, Mapping[int, MediaOutput]], GenerationRequest]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage. asked: what it is asked, of the user's request and the outputs that it reads."""

    number: int
    facts: StageFacts
    engine: Engine
    asked: InputProcessor


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all journeys have in common.

    connectors: by number of the stage that receives, where arrays do not go with the request itself.
    later: runs a job beside the engines' threads, which must not wait for each other.
    """

    stages: tuple[Stage, ...]
    main: Stage
    connectors: Mapping[int, Connector]
    is_chunked: bool
    later: Callable[[Callable[[], None]], None]


class Journey:
    """One request on its way through the stages.

    Args:
        ticket: the user's; every stage has one of its own.
        planned: steps of each stage, as far as is known before it runs.
    """

    def __init__(self, plan: Plan, request: GenerationRequest, ticket: Ticket, planned: list[int]) -> None:
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

    def _ready(self) -> list[Stage]:
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

    def _submit(self, stage: Stage) -> None:
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

    def _asked(self, stage: Stage) -> GenerationRequest:
        """What a stage is asked, with its arrays or the inbox where they arrive."""
        is_main, plan = stage is self._plan.main, self._plan
        if plan.is_chunked:
            asked = for_stage(stage, self._request, {}, is_main=is_main)
        else:
            outputs = {source: self._results[source].output for source in stage.facts.inputs}
            asked = for_stage(stage, self._request, outputs, is_main=is_main)
        connector = plan.connectors.get(stage.number)
        if connector is None or not (plan.is_chunked or asked.tensors):
            return asked
        channel = self._channels[stage.number]
        if not plan.is_chunked:
            channel.send(Handover(tensors=asked.tensors, is_last=True))
        output = replace(asked.output, recipe=False)
        return replace(asked, tensors={}, inbox=connector.publish(channel), output=output)

    def _heard(self, stage: Stage, event: StepEvent | GenerationResult | OmniReelError) -> None:
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

    def _is_new(self, stage: Stage, event: StepEvent) -> bool:
        """Whether this part was not handed on before; a stage whose worker died makes the same ones once more."""
        with self._lock:
            is_new = event.index > self._handed[stage.number]
            self._handed[stage.number] = max(event.index, self._handed[stage.number])
        return is_new

    def _hand_on(self, stage: Stage, part: Handover) -> None:
        for follower in self._plan.stages:
            if stage.number in follower.facts.inputs and follower.number in self._channels:
                self._channels[follower.number].send(part)

    def _flow(self, stage: Stage) -> None:
        """Lets those begin that wait for the first part."""
        with self._lock:
            is_first = stage.number not in self._flowing
            self._flowing.add(stage.number)
        if is_first:
            self._plan.later(self._go_on)

    def _counted(self, stage: Stage, event: StepEvent) -> StepEvent:
        """The event with its place among the steps of all stages."""
        with self._lock:
            number = stage.number
            self._done[number] = event.index
            # A stage that still receives knows of no more steps than it was given parts for.
            self._planned[number] = max(event.index, self._planned[number] if self._plan.is_chunked else event.total)
            index, total = sum(self._done), sum(self._planned)
        return replace(event, stage=stage.facts.name, index=index, total=total, chunk=None)

    def _ended(self, stage: Stage, result: GenerationResult) -> None:
        """Hands what a stage made to those that wait for it, or ends the journey; on the hand-over's thread."""
        with self._lock:
            self._results[stage.number] = result
            self._inner.pop(stage.number, None)
            self._done[stage.number] = self._planned[stage.number]
            is_last = len(self._results) == len(self._plan.stages)
        if is_last:
            self._finish(stage)
        else:
            self._go_on()

    def _finish(self, stage: Stage) -> None:
        try:
            whole = self._whole()
        except Exception as error:
            logger.exception("request %s failed at its end", self.ticket.request_id)
            self._fail(stage, bug(self.ticket.request_id, "the results of its stages", error))
        else:
            self.ticket.finish(whole)

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

    def _fail(self, stage: Stage, error: OmniReelError) -> None:
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


def for_stage(
    stage: Stage, request: GenerationRequest, outputs: Mapping[int, MediaOutput], *, is_main: bool
) -> GenerationRequest:
    """What a stage is asked; where the clip goes is for the main stage alone."""
    asked = stage.asked(request, outputs)
    if not is_main:
        return replace(asked, output=OutputSpec())
    return replace(asked, output=replace(asked.output, recipe=False)) if asked.tensors else asked
