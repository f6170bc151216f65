"""Drives one request through its pipeline. Cancelling, time limits, previews and measuring live here and nowhere else:
between two stages, and between two steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from omnireel.engine.ticket import Ticket
from omnireel.errors import EngineError, OmniReelError
from omnireel.observe.log import request_scope
from omnireel.observe.timing import StageClock
from omnireel.request import MediaOutput, StepEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnireel.models.protocol import DenoiseState, Pipeline
    from omnireel.platforms import Platform

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run made and took. durations: seconds by stage; peak_memory_mb: MiB, see GenerationResult."""

    output: MediaOutput
    durations: Mapping[str, float]
    peak_memory_mb: float


class Runner:
    """Runs tickets one after another on one device; called by one thread."""

    def __init__(self, pipeline: Pipeline[Any, Any], platform: Platform, device_index: int = 0) -> None:
        self._pipeline = pipeline
        self._platform = platform
        self._index = device_index

    def run(self, ticket: Ticket, after_step: Callable[[], None]) -> RunReport:
        """The whole way of one request.

        Args:
            ticket: is given the step events, and asked between steps whether it is still wanted.
            after_step: called after each step, when its event has been given.

        Raises:
            OmniReelError: whatever ended the request; anything unforeseen is logged and comes as EngineError.
        """
        clock = StageClock(partial(self._platform.synchronize, self._index))
        self._platform.reset_peak_memory(self._index)
        pipeline, workload = self._pipeline, ticket.workload
        conditioning = self._stage(clock, ticket, "encode", partial(pipeline.encode, workload))
        state = self._stage(clock, ticket, "prepare", partial(pipeline.prepare, workload, conditioning))
        del conditioning
        state = self._stage(clock, ticket, "denoise", partial(self._steps, ticket, state, after_step))
        output = self._stage(clock, ticket, "decode", partial(pipeline.decode, state))
        peak = self._platform.peak_memory_bytes(self._index) / 2**20
        return RunReport(output=output, durations=clock.durations, peak_memory_mb=peak)

    def _stage(self, clock: StageClock, ticket: Ticket, name: str, work: Callable[[], T]) -> T:
        ticket.check(f"before {name}")
        with request_scope(ticket.request_id, name):
            try:
                with clock.stage(name):
                    return work()
            except OmniReelError:
                raise
            except Exception as error:
                raise self._typed(error, ticket, name) from error

    def _steps(self, ticket: Ticket, state: DenoiseState, after_step: Callable[[], None]) -> DenoiseState:
        every = ticket.workload.output.preview_every
        while state.steps_done < state.num_steps:
            ticket.check(f"before step {state.steps_done + 1} of {state.num_steps}")
            start = time.perf_counter()
            state = self._pipeline.step(state)
            self._platform.synchronize(self._index)
            seconds = time.perf_counter() - start
            wanted = every > 0 and state.steps_done % every == 0
            ticket.emit(
                StepEvent(
                    request_id=ticket.request_id,
                    index=state.steps_done,
                    total=state.num_steps,
                    seconds=seconds,
                    preview=self._pipeline.preview(state) if wanted else None,
                )
            )
            logger.debug("step %d of %d took %.3f s", state.steps_done, state.num_steps, seconds)
            after_step()
        return state

    def _typed(self, error: Exception, ticket: Ticket, stage: str) -> OmniReelError:
        out_of_memory = self._platform.out_of_memory(error, stage)
        if out_of_memory is not None:
            return out_of_memory
        logger.error("request %s failed in %s", ticket.request_id, stage, exc_info=error)
        return EngineError(
            f"request {ticket.request_id} failed in {stage} ({type(error).__name__})",
            hint="this is a bug in omnireel; the log has the details",
            details={"request_id": ticket.request_id, "stage": stage, "bug": True},
        )
