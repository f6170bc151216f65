"""Takes jobs out of the table, hands the engine as many as it can step, and writes down how each of them ended.

The next job is taken when the steps of one are done, so that one is encoded while the other is decoded and written.
Everything here runs on the event loop's thread; what blocks is handed to others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from omnireel.engine.result import GenerationResult
from omnireel.errors import (
    Cancelled,
    EngineError,
    InvalidRequest,
    OmniReelError,
    QueueFull,
    StorageFailed,
    Unavailable,
    WorkerDied,
)
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaKind, OutputSpec, StepEvent
from omnireel.server import jobs as table
from omnireel.server import problem
from omnireel.server.inputs import Medium, refs_of
from omnireel.server.live import Live, Speed
from omnireel.server.stills import write_stills

if TYPE_CHECKING:
    from omnireel.engine.orchestrator import Engine
    from omnireel.engine.staged import StagedEngine
    from omnireel.server.jobs import Job, Jobs
    from omnireel.server.measures import Measures
    from omnireel.server.storage import Storage

logger = logging.getLogger(__name__)

Status: TypeAlias = Literal["ok", "starting", "recovering", "asleep", "stopping", "failed"]
CLIP = "clip.mp4"
_BUG = "this is a bug in omnireel"
QUEUE_SECONDS = 0.2
WATCH_SECONDS = 0.5
RETRY_SECONDS = 1.0
"""Pause after a table that could not be read or written."""


class Runs:
    """The jobs under way.

    Args:
        make_engine: makes the engine that everything runs on; called again after a sleep.
        ttl_seconds: how long finished files are kept; None for ever.
        preview_every: see OutputSpec.
        places: jobs that the engine steps at a time.
        is_rerun: whether a job runs once more whose worker died.
    """

    def __init__(
        self,
        make_engine: Callable[[], Engine | StagedEngine],
        jobs: Jobs,
        storage: Storage,
        measures: Measures,
        *,
        ttl_seconds: float | None,
        preview_every: int,
        places: int,
        is_rerun: bool,
    ) -> None:
        self.live, self.speed = Live(), Speed()
        self.engine = make_engine()
        self._make_engine = make_engine
        self._jobs, self._storage, self._measures = jobs, storage, measures
        self._ttl, self._preview_every = ttl_seconds, preview_every
        self._places, self._is_rerun = places, is_rerun
        self._wake = asyncio.Event()
        self._stepping: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unwanted: set[str] = set()
        self._loop: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self.is_stopping = self.is_asleep = self._is_out_of_time = False

    @property
    def status(self) -> Status:
        """How it is with the engine; "recovering" while its worker is started again."""
        if self.is_stopping:
            return "stopping"
        if self.is_asleep:
            return "asleep"
        if not self.engine.is_started:
            return "starting"
        if not self.engine.is_alive:
            return "failed"
        return "ok" if self.engine.is_ready else "recovering"

    @property
    def why_not(self) -> tuple[str | None, str | None]:
        """Why jobs are not run now, and what to do; (None, None) while they are. For everybody: no path, nothing of a log."""
        match self.status:
            case "ok":
                return None, None
            case "starting":
                return "the model is being loaded", "wait; jobs are accepted meanwhile"
            case "asleep":
                return "the model was put to sleep", "POST /v1/omni/wakeup loads it again; jobs are accepted meanwhile"
            case "stopping":
                return "the server was asked to stop", "jobs that wait are run by the next server on the same storage"
            case "recovering":
                return (
                    f"no replica runs now: {self._problems()}",
                    "wait; they are started again, and jobs are accepted meanwhile",
                )
            case "failed":
                return (
                    f"every replica is given up: {self._problems()}",
                    "restart the server; its log says more, and jobs that wait are run then",
                )

    def _problems(self) -> str:
        found = [problem.line(replica.problem) for replica in self.engine.health.replicas if replica.problem]
        return "; ".join(dict.fromkeys(found)) or "the engine has ended"

    async def failed(self) -> None:
        """Returns when no replica will ever run again."""
        while self.status != "failed":
            await asyncio.sleep(WATCH_SECONDS)

    @property
    def running(self) -> tuple[str, ...]:
        """Jobs that the engine has."""
        return tuple(self._tasks)

    async def start(self) -> None:
        """Loads the model and begins to take jobs.

        Raises:
            SetupError, OutOfMemory: the model cannot be loaded here.
        """
        await asyncio.to_thread(self.engine.start)
        self._loop = asyncio.create_task(self._take())

    def wake(self) -> None:
        """There is a new job."""
        self._wake.set()

    def cancel(self, job_id: str) -> None:
        """Gives a job up that the engine may have: it ends after the step under way."""
        if job_id in self._tasks:
            self._unwanted.add(job_id)
            self.engine.cancel(job_id)

    async def stop(self, grace_seconds: float) -> None:
        """Takes no more jobs; those that run may finish for a while, and wait for the next server after that."""
        self.is_stopping = True
        self.live.close()
        self.wake()
        if self._loop is not None:
            await self._loop
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=grace_seconds)
        self._is_out_of_time = True
        await asyncio.to_thread(self.engine.close)
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        self.live.close()

    def expiry(self, now: float) -> float | None:
        """When the files of a job that ends now go."""
        return None if self._ttl is None else now + self._ttl

    async def sleep(self) -> None:
        """Gives the model's memory back once nothing runs; jobs wait until `wake_up`."""
        async with self._lock:
            if self.is_asleep:
                return
            self._check_started()
            self.is_asleep = True
            while self._tasks:
                await asyncio.wait(list(self._tasks.values()))
            await asyncio.to_thread(self.engine.close)

    async def wake_up(self) -> None:
        """Loads the model again."""
        async with self._lock:
            if not self.is_asleep:
                return
            engine = await asyncio.to_thread(self._make_engine)
            await asyncio.to_thread(engine.start)
            self.engine, self.is_asleep = engine, False
        self.wake()

    def _check_started(self) -> None:
        if self.status != "ok":
            raise Unavailable(f"the server is {self.status}", hint="ask /health")

    async def _take(self) -> None:
        """The loop: one job after another, until the server stops."""
        while not self.is_stopping:
            self._wake.clear()
            job = None
            if self.status in ("ok", "recovering") and len(self._stepping) < self._places:
                try:
                    job = await asyncio.to_thread(self._jobs.claim)
                except StorageFailed as error:
                    logger.error("no job can be taken: %s", error.message)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
            if job is None:
                await self._wake.wait()
                continue
            self._stepping.add(job.id)
            self._tasks[job.id] = asyncio.create_task(self._run(job))

    async def _run(self, job: Job) -> None:
        try:
            await self._settle(job, await self._outcome(job))
        except Exception as error:
            logger.exception("job %s failed", job.id)
            await self._settle(job, EngineError(f"job {job.id} failed ({type(error).__name__})", hint=_BUG))
        finally:
            del self._tasks[job.id]
            self._unwanted.discard(job.id)
            self._stepping.discard(job.id)
            self.live.end(job.id)
            self.wake()

    async def _outcome(self, job: Job) -> GenerationResult | OmniReelError:
        """Runs a job on the engine; gives what ended it."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[StepEvent | GenerationResult | OmniReelError] = asyncio.Queue()
        folder = self._storage.video(job.id)
        request = request_of(job, folder, preview_every=self._preview_every)

        def hear(event: StepEvent | GenerationResult | OmniReelError) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        while True:
            try:
                await asyncio.to_thread(self.engine.submit, request, hear)
                break
            except QueueFull:
                # Its own line is short, and some that have been stepped are still there. Ours is the table.
                await asyncio.sleep(QUEUE_SECONDS)
                if not await self._is_wanted(job):
                    return Cancelled(job.id, "before it began")
            except OmniReelError as error:
                return error
        # It may have been given up before the engine had it, or before this task knew of it.
        if not await self._is_wanted(job):
            self.engine.cancel(job.id)
        while isinstance(event := await events.get(), StepEvent):
            self.live.step(event)
            if event.index == event.total:
                self._stepping.discard(job.id)
                self.wake()
        return event

    async def _settle(self, job: Job, outcome: GenerationResult | OmniReelError) -> None:
        """Writes down how a job ended, and tries again for as long as the disk does not let it."""
        folder = self._storage.video(job.id)
        if isinstance(outcome, InvalidRequest) and outcome.details.get("field") == "output":
            # The path is ours, and so is the disk that is full.
            outcome = StorageFailed("the clip cannot be written: the disk of the server is full or broken")
        if isinstance(outcome, GenerationResult):
            await asyncio.to_thread(write_stills, outcome, folder)
            self.speed.measured(job.cost, time.time() - (job.started_at or job.created_at))
        to, columns = self._end(job, outcome)
        while True:
            try:
                has_moved = await asyncio.to_thread(self._jobs.move, job.id, to, **columns)
                break
            except StorageFailed as error:
                logger.error("the end of job %s cannot be written down: %s", job.id, error.message)
                if self.is_stopping:
                    # It waits for the next server, which runs it again.
                    return
                await asyncio.sleep(RETRY_SECONDS)
        if has_moved:
            self._measures.ended(to)
        elif not await asyncio.to_thread(self._is_kept, job.id):
            # Deleted meanwhile; what was just written belongs to nobody.
            await asyncio.to_thread(self._storage.drop, folder)

    async def _is_wanted(self, job: Job) -> bool:
        """Whether a job that was claimed has not been given up since, and there is still time for it."""
        if job.id in self._unwanted or self._is_out_of_time:
            return False
        try:
            return not (await asyncio.to_thread(self._jobs.get, job.id)).is_final
        except OmniReelError as error:
            return isinstance(error, StorageFailed)

    def _is_kept(self, job_id: str) -> bool:
        try:
            self._jobs.get(job_id)
        except OmniReelError as error:
            return isinstance(error, StorageFailed)
        return True

    def _end(self, job: Job, outcome: GenerationResult | OmniReelError) -> tuple[str, dict[str, Any]]:
        """The state that an outcome leads to, and the columns that go with it."""
        now = time.time()
        kept = {"ended_at": now, "expires_at": self.expiry(now)}
        if isinstance(outcome, GenerationResult):
            return table.COMPLETED, {**kept, "result": _facts(outcome, job, now)}
        if isinstance(outcome, Cancelled):
            if self.is_stopping and job.id not in self._unwanted:
                # Stopped in order, which does not count as one of its attempts.
                return table.QUEUED, {"started_at": None, "attempts": job.attempts - 1}
            return table.CANCELLED, kept
        if isinstance(outcome, WorkerDied) and self._is_rerun and job.attempts < table.MAX_ATTEMPTS:
            return table.QUEUED, {"started_at": None}
        return table.FAILED, {**kept, "error": problem.public(outcome).to_dict()}


def request_of(job: Job, folder: Path, *, preview_every: int) -> GenerationRequest:
    """The engine's request of a job, the same each time."""
    asked = job.request
    media = [
        Medium(
            field=item["field"],
            kind=MediaKind(item["kind"]),
            path=item["path"],
            start_seconds=item["start_seconds"],
        )
        for item in asked["media"]
    ]
    return GenerationRequest(
        prompt=asked["prompt"],
        media=refs_of(media, [item["role"] for item in asked["media"]], folder),
        sampling=DiffusionSamplingParams(**asked["sampling"]),
        output=OutputSpec(path=folder / CLIP, preview_every=preview_every),
        request_id=job.id,
    )


def _facts(result: GenerationResult, job: Job, now: float) -> Mapping[str, Any]:
    started = job.started_at or now
    durations = {name: round(seconds, 6) for name, seconds in result.stage_durations.items()}
    return {
        "stage_durations": durations,
        "peak_memory_mb": result.peak_memory_mb,
        "queue_time_s": round(started - job.created_at + durations.get("queue", 0.0), 6),
        "inference_time_s": round(sum(seconds for name, seconds in durations.items() if name != "queue"), 6),
        "size_bytes": 0 if result.encoded is None else result.encoded.size_bytes,
        "digest": "" if result.encoded is None else result.encoded.digest,
        "profile": {name: asdict(part) for name, part in result.profile.items()},
    }
