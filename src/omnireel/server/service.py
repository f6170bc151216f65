"""What every endpoint works with, and the way of a new job from a body to a row."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.datastructures import UploadFile

from omnireel.config import ResolvedConfig
from omnireel.errors import (
    Conflict,
    InvalidRequest,
    OmniReelError,
    QueueFull,
    StorageFailed,
    Unavailable,
    UnknownJob,
)
from omnireel.request import DiffusionSamplingParams, GenerationRequest
from omnireel.server import jobs as table
from omnireel.server.asked import Asked, asked_of
from omnireel.server.form import Fields
from omnireel.server.inputs import Inputs, Medium, refs_of, roles_of
from omnireel.server.jobs import Job, Jobs, StoredFile, new_id
from omnireel.server.keys import keys_of
from omnireel.server.measures import Measures
from omnireel.server.runs import CLIP, Runs
from omnireel.server.storage import Storage

if TYPE_CHECKING:
    from omnireel.engine.orchestrator import Engine
    from omnireel.engine.staged import StagedEngine
    from omnireel.request import Workload

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
FORGET_SECONDS = 30 * 86_400.0
"""How long a job is remembered after its files are gone."""


class Service:
    """One server's parts.

    Args:
        config: settled settings.
        make_engine: see `Runs`.

    Raises:
        SetupError: the storage or the keys cannot be used.
    """

    def __init__(self, config: ResolvedConfig, make_engine: Callable[[], Engine | StagedEngine]) -> None:
        spec = config.server
        self.config, self.spec = config, spec
        self.keys = keys_of(spec.api_key or (), spec.api_key_file)
        self.storage = Storage(spec.storage_path or Path.home() / ".local" / "share" / "omnireel")
        with ExitStack() as undo:
            # Where the model cannot be served, another server may have the root at once.
            undo.callback(self.storage.close)
            self.jobs = Jobs(self.storage.database)
            undo.callback(self.jobs.close)
            is_rerun = spec.interrupted_jobs == "rerun"
            self.jobs.recover(is_rerun=is_rerun, ttl_seconds=spec.file_ttl)
            self.storage.sweep(self.jobs.ids(), {file.id for file in self.jobs.files()})
            self.measures = Measures()
            self.runs = Runs(
                make_engine,
                self.jobs,
                self.storage,
                self.measures,
                ttl_seconds=spec.file_ttl,
                preview_every=spec.preview_every,
                places=config.process.num_replicas * (config.batch.max_num_seqs or 1),
                is_rerun=is_rerun,
            )
            undo.pop_all()
        self.inputs = Inputs(spec, stored=self._stored, clip=self.clip)
        self.started_at = time.time()
        self._sweeper: asyncio.Task[None] | None = None
        self.measures.watch("jobs_queued", "Jobs that wait", lambda: self.jobs.count(table.QUEUED))
        self.measures.watch("jobs_running", "Jobs that run", lambda: len(self.runs.running))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What requests may call the model; answers use the first."""
        asked, stages = self.config.model.model, self.config.stages
        if len(stages) > 1:
            return self.spec.served_model_name or (self.config.topology.name, self.runs.engine.checkpoint.name)
        # A folder of this machine is nobody else's business.
        also = () if Path(asked).is_dir() else (asked,)
        return self.spec.served_model_name or tuple(dict.fromkeys((self.runs.engine.checkpoint.name, *also)))

    async def start(self) -> None:
        """Loads the model and begins to run jobs; see `Runs.start`."""
        self._sweeper = asyncio.create_task(self._sweep_now_and_then())
        await self.runs.start()

    async def stop(self) -> None:
        """Takes no more jobs, and lets those that run finish for a while."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.runs.stop(self.spec.abort_timeout)

    async def create(
        self,
        fields: Fields,
        owner: str,
        *,
        is_sync: bool = False,
        idempotency_key: str | None = None,
        remixed_from: str | None = None,
    ) -> Job:
        """A new job out of a body, accepted: from here on it is not lost.

        Raises:
            ClientError: it is not allowed, or too much waits.
            StorageFailed: it cannot be kept.
        """
        job = Job(id=new_id("video"), owner=owner, is_sync=is_sync)
        if idempotency_key is not None:
            digest = await asyncio.to_thread(_digest, fields.values)
            job = replace(job, idempotency_key=idempotency_key, body_digest=digest)
            earlier = await asyncio.to_thread(self.jobs.repeated, job)
            if earlier is not None:
                return earlier
        asked = asked_of(fields, self.names)
        if not asked.sources and not asked.starts:
            # One way to a thread and back: while clips are encoded each may wait for the interpreter.
            return await asyncio.to_thread(self._without_media, job, asked, remixed_from)
        await asyncio.to_thread(self._check_room, owner)
        with self.storage.arriving() as folder:
            media = await self.inputs.taken(asked.sources, asked.starts, folder)
            return await asyncio.to_thread(self._accepted, job, asked, media, folder, remixed_from)

    def clip(self, job_id: str) -> Path:
        """The finished clip of a job.

        Raises:
            UnknownJob, Conflict: there is no such job, or it has no clip (yet, or any more).
        """
        job = self.jobs.get(job_id)
        if job.status != table.COMPLETED or job.is_expired:
            raise Conflict(f"video {job.id} has no clip: it is {'expired' if job.is_expired else job.status}")
        return self.storage.video(job_id) / CLIP

    def cancel(self, job_id: str) -> Job:
        """Gives a job up; one that has ended stays as it is."""
        self.jobs.move(job_id, table.CANCELLED, expires_at=self.runs.expiry(time.time()))
        self.runs.cancel(job_id)
        self.runs.live.end(job_id)
        return self.jobs.get(job_id)

    def delete(self, job_id: str) -> None:
        """Gives a job up and forgets it and its files; a run under way removes its own when it has ended."""
        self.jobs.get(job_id)
        is_running = job_id in self.runs.running
        self.runs.cancel(job_id)
        self.jobs.remove(job_id)
        if not is_running:
            self.storage.drop(self.storage.video(job_id))
        self.runs.live.end(job_id)

    def sweep(self) -> None:
        """Removes files that have been kept for their time, and forgets jobs a good while later."""
        now = time.time()
        for job in self.jobs.outdated(now):
            self.jobs.expire(job.id)
            self.storage.drop(self.storage.video(job.id))
        self.jobs.forget_expired(now - FORGET_SECONDS)

    def close(self) -> None:
        """Lets go of the table and the root."""
        self.jobs.close()
        self.storage.close()

    async def _sweep_now_and_then(self) -> None:
        pause = SWEEP_SECONDS if self.spec.file_ttl is None else min(SWEEP_SECONDS, self.spec.file_ttl)
        while True:
            await asyncio.sleep(pause)
            try:
                await asyncio.to_thread(self.sweep)
            except StorageFailed as error:
                logger.error("old files cannot be removed now: %s", error.message)

    def _stored(self, file_id: str) -> Path:
        stored: StoredFile = self.jobs.file(file_id)
        return self.storage.file(stored.id)

    def _check_room(self, owner: str) -> None:
        """Raises QueueFull with the time after which a place should be free, by the speed of what ran before."""
        if self.runs.status in ("stopping", "failed"):
            reason, hint = self.runs.why_not
            raise Unavailable(f"no jobs are taken, for {reason}", hint=hint or "")
        waiting = self.jobs.count(table.QUEUED)
        own = self.jobs.count(table.QUEUED, table.RUNNING, owner=owner) if owner else 0
        most_own = self.spec.max_jobs_per_key
        if waiting >= self.spec.max_jobs or (owner and most_own is not None and own >= most_own):
            raise QueueFull(max(waiting, own), self._retry_after())

    def _retry_after(self) -> float:
        jobs = []
        for job_id in self.runs.running:
            with suppress(UnknownJob):
                jobs.append(self.jobs.get(job_id))
        left = [self.runs.speed.seconds_left(job.cost, job.started_at) for job in jobs]
        return min(left, default=1.0)

    def _admitted(self, asked: Asked, media: tuple[Medium, ...], folder: Path) -> tuple[list[str], Workload]:
        """The roles of the media and the workload that the model's rules make of them.

        Raises:
            ClientError: what the rules say of the likeliest roles.
        """
        failure: OmniReelError | None = None
        for roles in roles_of(media, asked.frame_indices):
            request = GenerationRequest(
                prompt=asked.prompt,
                media=refs_of(media, roles, folder),
                sampling=DiffusionSamplingParams(**asked.sampling),
            )
            try:
                return roles, self.runs.engine.admit(request)
            except OmniReelError as error:
                failure = failure or error
        assert failure is not None, "there are always roles to try"
        raise _in_words_of_http(failure)

    def _without_media(self, job: Job, asked: Asked, remixed_from: str | None) -> Job:
        self._check_room(job.owner)
        with self.storage.arriving() as folder:
            return self._accepted(job, asked, (), folder, remixed_from)

    def _accepted(
        self, job: Job, asked: Asked, media: tuple[Medium, ...], folder: Path, remixed_from: str | None
    ) -> Job:
        roles, work = self._admitted(asked, media, folder)
        job = replace(
            job, cost=work.cost, request=_remembered(asked, media, roles, work, remixed_from), settled=_settled(work)
        )
        place = self.storage.video(job.id)
        self.storage.keep(folder, place)
        try:
            kept = self.jobs.add(job)
        except BaseException:
            self.storage.drop(place)
            raise
        if kept.id != job.id:
            # The same request came twice at once.
            self.storage.drop(place)
        return kept


def service_of(request: Request) -> Service:
    """The server that a request came to."""
    service: Service = request.app.state.service
    return service


def owner_of(request: Request) -> str:
    """Whose key the request came with."""
    return str(request.scope.get("omnireel.owner", ""))


def _in_words_of_http(error: OmniReelError) -> OmniReelError:
    """What the engine calls extra_args is extra_params here."""
    name = error.details.get("field")
    if isinstance(error, InvalidRequest) and isinstance(name, str) and name.startswith("extra_args"):
        data = json.loads(json.dumps(error.to_dict(), default=str).replace("extra_args", "extra_params"))
        return OmniReelError.from_dict(data)
    return error


def _settled(work: Workload) -> dict[str, Any]:
    return {
        "task": work.task,
        "width": work.width,
        "height": work.height,
        "num_frames": work.num_frames,
        "fps": work.fps,
        "seed": work.seed,
        "num_inference_steps": work.num_inference_steps,
    }


def _remembered(
    asked: Asked, media: tuple[Medium, ...], roles: list[str], work: Workload, remixed_from: str | None
) -> dict[str, Any]:
    """All that runs the job again and gives the same."""
    sampling = {**asked.sampling, "seed": work.seed}
    extra = dict(sampling.get("extra_args") or {})
    extra.pop("seed", None)
    sampling["extra_args"] = extra or None
    return {
        "prompt": asked.prompt,
        "sampling": sampling,
        "media": [
            {
                "field": medium.field,
                "kind": str(medium.kind),
                "path": medium.path,
                "start_seconds": medium.start_seconds,
                "role": role,
            }
            for medium, role in zip(media, roles, strict=True)
        ],
        "quality": asked.quality,
        "user": asked.user,
        "wants_metrics": asked.wants_metrics,
        "remixed_from": remixed_from,
    }


def _digest(values: Mapping[str, Any]) -> str:
    """A digest of a body, files included, by which a repeated request is told from another one."""
    whole = hashlib.sha256()

    def plain(value: Any) -> Any:
        if isinstance(value, UploadFile):
            digest = hashlib.file_digest(value.file, "sha256").hexdigest()  # type: ignore[arg-type]
            value.file.seek(0)
            return {"file": digest}
        raise TypeError(type(value).__name__)

    whole.update(json.dumps(values, default=plain, sort_keys=True).encode())
    return whole.hexdigest()
