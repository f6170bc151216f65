"""Drives requests through their pipeline. Cancelling, time limits, previews and measuring live here and nowhere else:
between two stages, and between two steps.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from omnireel.engine.agreement import agreed, tell_failed
from omnireel.engine.intake import Intake
from omnireel.engine.ticket import Ticket
from omnireel.errors import EngineError, OmniReelError, OutOfMemory
from omnireel.observe.log import request_scope
from omnireel.observe.profile import PartProfile, Profile
from omnireel.observe.timing import StageClock
from omnireel.request import MediaOutput, StepEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from omnireel.engine.executors import Feed
    from omnireel.models.protocol import DenoiseState, Pipeline
    from omnireel.parallel import Ranks
    from omnireel.platforms import Platform
    from omnireel.request import FramesU8, Workload

logger = logging.getLogger(__name__)

SIGN_SECONDS = 1.0
"""How often who waits for another stage says so; a worker that says nothing for long is taken for hung."""

T = TypeVar("T")
ChunkProcessor: TypeAlias = "Callable[[Any], Mapping[str, npt.NDArray[Any]] | None]"


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


class _Run:
    """One request on its way; what it made of memory is let go with `state`.

    is_alone: of what ends it from here on the other ranks know already, or need not know.
    """

    def __init__(self, ticket: Ticket, synchronize: Callable[[], None], profile: Profile) -> None:
        self.ticket = ticket
        self.clock = StageClock(synchronize)
        self.profile = profile
        self.state: DenoiseState | None = None
        self.intake: Intake | None = None
        self.shown_at = 0.0
        self.is_alone = False


class Runner:
    """Runs requests on one device, those of one batch key together; called by one thread.

    Args:
        max_batch: requests that are stepped at once; more than one needs a pipeline with `step_batch`.
        chunk_processor: cuts what was made so far into parts, see `StageFacts`; None to hand over the whole.
        is_profiled: measure seconds and peak memory of each part of a run, which waits for the device in between.
        ranks: who run the same requests in step with this one; the first of them decodes. They agree on cancels and time limits between
            two steps, and one that fails in the loop leaves, so that the others fail too rather than wait for it.
        is_decode_shared: all of them decode, and agree between parts of that too.
    """

    def __init__(
        self,
        pipeline: Pipeline[Any, Any],
        platform: Platform,
        device_index: int = 0,
        *,
        max_batch: int = 1,
        is_profiled: bool = False,
        chunk_processor: ChunkProcessor | None = None,
        ranks: Ranks | None = None,
        is_decode_shared: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._platform = platform
        self._index = device_index
        self._max_batch = max_batch
        self._is_profiled = is_profiled
        self._chunk = chunk_processor
        self._ranks = ranks
        self._is_decode_shared = is_decode_shared and ranks is not None
        self._largest: Workload | None = None

    def run(self, tickets: Sequence[Ticket], feed: Feed) -> None:
        """The whole way of these requests, and of those that join them between two steps.

        Every request's end goes to `feed`: a RunReport or an OmniReelError; anything unforeseen is logged and comes as
        EngineError. An error carries no traceback, for that would keep the request's tensors alive as long as it is held.
        """
        key = tickets[0].workload.batch_key
        active = [run for ticket in tickets if (run := self._begun(ticket, feed))]
        while active:
            active = [run for run in active if self._goes_on(run, feed)]
            self._step(active, feed)
            active = [run for run in active if run.state is not None]
            if self._max_batch > len(active) > 0:
                joined = feed.more(key, self._max_batch - len(active))
                active += [run for ticket in joined if (run := self._begun(ticket, feed))]

    def _begun(self, ticket: Ticket, feed: Feed) -> _Run | None:
        """The request before its first step; None when it ended before."""
        run = _Run(ticket, partial(self._platform.synchronize, self._index), self._profile())
        pipeline = self._pipeline

        def begin() -> None:
            self._guarded(ticket, "start", run.profile.begin)
            work = self._guarded(ticket, "hand-over", partial(self._received, run, feed))
            conditioning = self._stage(run, "encode", partial(pipeline.encode, work), feed)
            run.state = self._stage(run, "prepare", partial(pipeline.prepare, work, conditioning), feed)
            where = "while it was decoded"
            run.state.pause = (
                partial(self._check, run, where) if self._is_decode_shared else partial(ticket.check, where)
            )
            self._pause(run, feed, "before denoise")

        return run if self._ended_well(run, feed, begin) else None

    def _goes_on(self, run: _Run, feed: Feed) -> bool:
        """Whether the request has steps left; one that has none is decoded, one that is not wanted ends."""
        if not self._ended_well(run, feed, partial(self._take, run)):
            return False
        state = run.state
        assert state is not None
        if state.steps_done == state.num_steps:
            self._finish(run, feed)
            return False
        if not state.steps_done:
            return True
        where = f"before step {state.steps_done + 1} of {state.num_steps}"
        return self._ended_well(run, feed, partial(self._pause, run, feed, where))

    def _received(self, run: _Run, feed: Feed) -> Workload:
        """The workload with what the stage before hands over; a pipeline that takes parts is given them as they come."""
        work = run.ticket.workload
        if work.inbox is None:
            return work
        run.intake = Intake(work.inbox, partial(self._waits, run, feed))
        if hasattr(self._pipeline, "take"):
            return work
        return replace(work, tensors=run.intake.whole(), inbox=None)

    def _waits(self, run: _Run, feed: Feed) -> None:
        """A pause of who has nothing to do, and shows now and then that it is alive."""
        feed.pause()
        # Of this process alone, for ranks do not wait equally often; one that is not to go on leaves the others.
        run.ticket.check("while it waited for the stage before")
        now = time.monotonic()
        if run.ticket.on_stage is not None and now - run.shown_at > SIGN_SECONDS:
            run.shown_at = now
            run.ticket.on_stage("wait")

    def _take(self, run: _Run) -> None:
        """Gives a request that has no step left the next part of its input, where there is one."""
        state, intake = run.state, run.intake
        assert state is not None
        while intake is not None and state.steps_done == state.num_steps:
            part = self._guarded(run.ticket, "hand-over", intake.next)
            if part is None:
                return
            # Whether a pipeline has it was asked above.
            take = partial(self._pipeline.take, state, part)  # type: ignore[attr-defined]
            self._guarded(run.ticket, "take", take)

    def _finish(self, run: _Run, feed: Feed) -> None:
        made: list[RunReport] = []

        def decode() -> None:
            assert run.state is not None
            run.state.progress = None
            output = self._stage(run, "decode", partial(self._decoded, run), feed)
            peak = self._guarded(run.ticket, "end", lambda: run.profile.peak_bytes) / 2**20
            report = RunReport(
                output=output,
                durations=run.clock.durations,
                peak_memory_mb=peak,
                profile=run.profile.parts,
                counts=dict(run.profile.counts),
            )
            made.append(report)

        if self._ended_well(run, feed, decode):
            run.state = None
            if self._largest is None or self._largest.cost < run.ticket.workload.cost:
                self._largest = replace(run.ticket.workload, prompt="", media=(), tensors={}, inbox=None)
            feed.done(run.ticket, made.pop())

    def _decoded(self, run: _Run) -> MediaOutput:
        """What the pipeline makes of the end of its loop; nothing where the first rank does it alone."""
        run.is_alone = not self._is_decode_shared
        if self._ranks is not None and not self._ranks.is_first and run.is_alone:
            return MediaOutput()
        return self._pipeline.decode(run.state)

    def _ended_well(self, run: _Run, feed: Feed, work: Callable[[], None]) -> bool:
        """Does the work; False when that ended the request, which has been told then."""
        try:
            work()
        except OmniReelError as error:
            failure = error
        else:
            return True
        if run.intake is not None:
            run.intake.close()
        failure.__cause__ = failure.__context__ = failure.__traceback__ = None
        is_in_loop = run.state is not None
        if run.state is not None:
            # Nobody may take the last step's progress for that of a loop under way.
            run.state.progress = None
        run.state = None
        if self._ranks is not None and not run.is_alone:
            # In the loop others may wait in the middle of an exchange.
            self._ranks.leave() if is_in_loop else tell_failed(self._ranks)
        if isinstance(failure, OutOfMemory):
            # Only now is nothing of the request reachable; library frames may have left cycles.
            gc.collect()
            self._platform.release_memory(self._index)
            self._say_what_fits(failure)
        feed.done(run.ticket, failure)
        return False

    def _profile(self) -> Profile:
        platform, index = self._platform, self._index
        return Profile(
            is_timed=self._is_profiled,
            synchronize=partial(platform.synchronize, index),
            reset_peak=partial(platform.reset_peak_memory, index),
            peak_bytes=partial(platform.peak_memory_bytes, index),
        )

    def _say_what_fits(self, failure: OutOfMemory) -> None:
        if self._largest is not None:
            work = self._largest
            fitted = f"{work.width}x{work.height} with {work.num_frames} frames"
            failure.details["fitted"] = fitted
            failure.hint = f"{failure.hint}; the largest that fitted here so far is {fitted}"

    def _stage(self, run: _Run, name: str, work: Callable[[], T], feed: Feed) -> T:
        ticket = run.ticket
        with request_scope(ticket.request_id, name):
            if ticket.on_stage is not None:
                ticket.on_stage(name)
            self._pause(run, feed, f"before {name}")
            return self._guarded(ticket, name, partial(_timed, run, name, work))

    def _pause(self, run: _Run, feed: Feed, where: str) -> None:
        """A pause between two stages or steps."""
        feed.pause()
        self._check(run, where)

    def _check(self, run: _Run, where: str) -> None:
        """Ends the request where it is not wanted any more; all ranks at the same place."""
        problem = run.ticket.problem(where)
        if self._ranks is not None:
            problem = agreed(self._ranks, run.ticket, problem, where)
        if problem is not None:
            run.is_alone = True
            raise problem

    def _step(self, active: list[_Run], feed: Feed) -> None:
        """One step of every request: of several at once, of each alone where that fails, so that one cannot fail another."""
        if len(active) > 1:
            try:
                self._step_together(active)
            except Exception as error:  # noqa: BLE001 - whose it is comes out when each is stepped alone
                logger.warning("a step of %d requests failed (%s); each is stepped alone", len(active), error)
            else:
                return
        for run in active:
            self._ended_well(run, feed, partial(self._step_alone, run))

    def _step_alone(self, run: _Run) -> None:
        assert run.state is not None
        with request_scope(run.ticket.request_id, "denoise"):
            start = time.perf_counter()
            work = partial(_timed, run, "denoise", partial(self._one_step, run.state))
            run.state = state = self._guarded(run.ticket, "denoise", work)
            self._stepped(run, state, time.perf_counter() - start)

    def _one_step(self, state: DenoiseState) -> DenoiseState:
        done = state.steps_done
        state = self._pipeline.step(state)
        assert state.steps_done == done + 1, "a pipeline's step counts itself"
        return state

    def _step_together(self, active: list[_Run]) -> None:
        start = time.perf_counter()
        # Whether a pipeline has it was asked when the engine was made.
        states = self._pipeline.step_batch([run.state for run in active])  # type: ignore[attr-defined]
        self._platform.synchronize(self._index)
        seconds = time.perf_counter() - start
        for run, state in zip(active, states, strict=True):
            run.state = state
            run.clock.durations["denoise"] = run.clock.durations.get("denoise", 0.0) + seconds
            with request_scope(run.ticket.request_id, "denoise"):
                self._stepped(run, state, seconds)

    def _stepped(self, run: _Run, state: DenoiseState, seconds: float) -> None:
        logger.debug("step %d of %d took %.3f s", state.steps_done, state.num_steps, seconds)
        event = StepEvent(
            request_id=run.ticket.request_id,
            index=state.steps_done,
            total=state.num_steps,
            seconds=seconds,
            progress=state.progress,
            preview=self._preview(run.ticket, state),
            chunk=None if self._chunk is None else self._guarded(run.ticket, "chunk", partial(self._chunk, state)),
        )
        run.ticket.emit(event)

    def _guarded(self, ticket: Ticket, stage: str, work: Callable[[], T]) -> T:
        """Turns whatever goes wrong into an error that the caller may see."""
        try:
            return work()
        except OmniReelError:
            raise
        except Exception as error:
            raise self._typed(error, ticket, stage) from error

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


def _timed(run: _Run, stage: str, work: Callable[[], T]) -> T:
    with run.profile.watching(), run.profile.part(stage), run.clock.stage(stage):
        return work()
