"""Drives one request through its pipeline. Cancelling, time limits, previews and measuring live here and nowhere else:
between two stages, and between two steps.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from omnireel.engine.ticket import Ticket
from omnireel.errors import EngineError, OmniReelError, OutOfMemory
from omnireel.observe.log import request_scope
from omnireel.observe.profile import PartProfile, Profile
from omnireel.observe.timing import StageClock
from omnireel.request import MediaOutput, StepEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnireel.models.protocol import DenoiseState, Pipeline
    from omnireel.platforms import Platform
    from omnireel.request import FramesU8

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run made and took. durations: seconds by stage; peak_memory_mb: MiB, see GenerationResult.

    profile: parts of the run, empty unless it was profiled; counts: what the model counted, such as cache hits.
    """

    output: MediaOutput
    durations: Mapping[str, float]
    peak_memory_mb: float
    profile: Mapping[str, PartProfile] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


class Runner:
    """Runs tickets one after another on one device; called by one thread.

    Args:
        is_profiled: measure seconds and peak memory of each part of a run, which waits for the device in between.
    """

    def __init__(
        self, pipeline: Pipeline[Any, Any], platform: Platform, device_index: int = 0, *, is_profiled: bool = False
    ) -> None:
        self._pipeline = pipeline
        self._platform = platform
        self._index = device_index
        self._is_profiled = is_profiled

    def run(self, ticket: Ticket, between: Callable[[], None]) -> RunReport:
        """The whole way of one request.

        Args:
            ticket: is given the step events, and asked in every pause whether it is still wanted.
            between: called in every pause, which is before each stage and before each step.

        Raises:
            OmniReelError: whatever ended the request; anything unforeseen is logged and comes as EngineError. It carries
                no traceback, for that would keep the request's tensors alive for as long as somebody holds the error.
        """
        try:
            return self._stages(ticket, between)
        except OmniReelError as error:
            failure = error
        failure.__cause__ = failure.__context__ = failure.__traceback__ = None
        if isinstance(failure, OutOfMemory):
            # Only now is nothing of the request reachable; library frames may have left cycles.
            gc.collect()
            self._platform.release_memory(self._index)
        raise failure

    def _stages(self, ticket: Ticket, between: Callable[[], None]) -> RunReport:
        clock, profile = StageClock(partial(self._platform.synchronize, self._index)), self._profile()
        pause = partial(_pause, ticket, between)
        pipeline, workload = self._pipeline, ticket.workload

        def stage(name: str, work: Callable[[], T]) -> T:
            with request_scope(ticket.request_id, name):
                pause(f"before {name}")
                return self._guarded(ticket, name, partial(_timed, clock, profile, name, work))

        self._guarded(ticket, "start", profile.begin)
        conditioning = stage("encode", partial(pipeline.encode, workload))
        state = stage("prepare", partial(pipeline.prepare, workload, conditioning))
        del conditioning
        state = stage("denoise", partial(self._steps, ticket, state, pause))
        output = stage("decode", partial(pipeline.decode, state))
        peak = self._guarded(ticket, "end", lambda: profile.peak_bytes) / 2**20
        return RunReport(
            output=output,
            durations=clock.durations,
            peak_memory_mb=peak,
            profile=profile.parts,
            counts=dict(profile.counts),
        )

    def _profile(self) -> Profile:
        platform, index = self._platform, self._index
        return Profile(
            is_timed=self._is_profiled,
            synchronize=partial(platform.synchronize, index),
            reset_peak=partial(platform.reset_peak_memory, index),
            peak_bytes=partial(platform.peak_memory_bytes, index),
        )

    def _guarded(self, ticket: Ticket, stage: str, work: Callable[[], T]) -> T:
        """Turns whatever goes wrong into an error that the caller may see."""
        try:
            return work()
        except OmniReelError:
            raise
        except Exception as error:
            raise self._typed(error, ticket, stage) from error

    def _steps(self, ticket: Ticket, state: DenoiseState, pause: Callable[[str], None]) -> DenoiseState:
        try:
            return self._loop(ticket, state, pause)
        finally:
            # Also after an error: nobody may take the last step's progress for that of a loop under way.
            state.progress = None

    def _loop(self, ticket: Ticket, state: DenoiseState, pause: Callable[[str], None]) -> DenoiseState:
        while (done := state.steps_done) < state.num_steps:
            if done:
                pause(f"before step {done + 1} of {state.num_steps}")
            start = time.perf_counter()
            state = self._pipeline.step(state)
            self._platform.synchronize(self._index)
            seconds = time.perf_counter() - start
            assert state.steps_done == done + 1, "a pipeline's step counts itself"
            logger.debug("step %d of %d took %.3f s", done + 1, state.num_steps, seconds)
            event = StepEvent(
                request_id=ticket.request_id,
                index=done + 1,
                total=state.num_steps,
                seconds=seconds,
                progress=state.progress,
                preview=self._preview(ticket, state),
            )
            ticket.emit(event)
        return state

    def _preview(self, ticket: Ticket, state: DenoiseState) -> FramesU8 | None:
        """A look at the clip where one is due. One that fails costs the picture, never the request."""
        every = ticket.workload.output.preview_every
        if every <= 0 or state.steps_done % every:
            return None
        try:
            return self._pipeline.preview(state)
        except Exception as error:
            out_of_memory = self._platform.out_of_memory(error, "preview", self._index)
            if out_of_memory is None:
                logger.exception("no preview after step %d", state.steps_done)
            else:
                logger.warning("no preview after step %d: %s", state.steps_done, out_of_memory.message)
            return None

    def _typed(self, error: Exception, ticket: Ticket, stage: str) -> OmniReelError:
        out_of_memory = self._platform.out_of_memory(error, stage, self._index)
        if out_of_memory is not None:
            return out_of_memory
        logger.error("request %s failed in %s", ticket.request_id, stage, exc_info=error)
        return bug(ticket.request_id, stage, error)


def bug(request_id: str, stage: str, error: BaseException) -> EngineError:
    """What the caller of a request is told of an exception that nobody foresaw; its words may hold paths or prompts."""
    return EngineError(
        f"request {request_id} failed in {stage} ({type(error).__name__})",
        hint="this is a bug in omnireel; the log has the details",
        details={"request_id": request_id, "stage": stage, "bug": True},
    )


def _timed(clock: StageClock, profile: Profile, stage: str, work: Callable[[], T]) -> T:
    with profile.watching(), profile.part(stage), clock.stage(stage):
        return work()


def _pause(ticket: Ticket, between: Callable[[], None], where: str) -> None:
    between()
    ticket.check(where)
