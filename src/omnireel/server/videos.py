"""/v1/videos: jobs that make clips, the way the OpenAI API has them, and what it lacks."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from omnireel.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    Expired,
    InvalidRequest,
    JobFailed,
    OmniReelError,
    Unavailable,
    UnknownJob,
)
from omnireel.server import jobs as table
from omnireel.server.bodies import CLIP_BODY, CREATE_BODY, REMIX_BODY
from omnireel.server.events import EventStream
from omnireel.server.form import Fields, reading
from omnireel.server.inputs import MAX_FILE_BYTES
from omnireel.server.jobs import Job
from omnireel.server.problem import answers
from omnireel.server.runs import CLIP
from omnireel.server.schemas import Deleted, Video, VideoError, VideoList
from omnireel.server.sending import Sent
from omnireel.server.service import Service, owner_of, service_of
from omnireel.server.stills import SPRITESHEET, THUMBNAIL

router = APIRouter(tags=["videos"])

POLL_MS = 500
"""How often clients that follow `openai-poll-after-ms` ask while a job is under way."""
_VARIANTS = {
    "video": (CLIP, "video/mp4"),
    "thumbnail": (THUMBNAIL, "image/webp"),
    "spritesheet": (SPRITESHEET, "image/jpeg"),
}
_BYTES = {"schema": {"type": "string", "format": "binary"}}
_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"type": "string", "enum": ["progress", "completed", "failed", "cancelled", "deleted"]},
        "data": {"type": "string", "description": "JSON: of progress the steps, of an end the job"},
    },
}
_CREATING = answers(404, 409, 415, 429)
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=255)]


@router.post("/v1/videos", response_model=Video, responses=_CREATING, openapi_extra=CREATE_BODY)
async def create(request: Request, idempotency_key: IdempotencyKey = None) -> Video:
    """Accepts a job and answers at once; the work goes on, whatever becomes of the connection."""
    async with _body(request) as fields:
        job = await service_of(request).create(fields, owner_of(request), idempotency_key=idempotency_key)
    return _accepted(request, job)


@router.post(
    "/v1/videos/sync",
    response_class=Response,
    responses={
        **answers(404, 409, 415, 422, 429, 499, 504),
        200: {"content": {"video/mp4": _BYTES}, "description": "the clip"},
    },
    openapi_extra=CREATE_BODY,
)
async def create_sync(request: Request) -> Response:
    """Makes a clip and answers with its bytes. Who hangs up gives it up, within one step."""
    service = service_of(request)
    async with _body(request) as fields:
        job = await service.create(fields, owner_of(request), is_sync=True)
    try:
        service.runs.wake()
        ended = await _ended(service, request, job.id)
        if ended.status != table.COMPLETED:
            raise OmniReelError.from_dict(dict(ended.error)) if ended.error else Cancelled(job.id, "by its client")
        return _Once(service, ended)
    except BaseException:
        service.delete(job.id)
        raise


@router.get("/v1/videos", response_model=VideoList, responses=answers())
def list_videos(
    request: Request,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=0, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """A page of jobs, the newest first; `after` is the last id of the page before."""
    service = service_of(request)
    jobs, has_more = service.jobs.page(after=after, limit=limit, is_ascending=order == "asc")
    data = [video_of(service, job) for job in jobs]
    page = VideoList(
        data=data, first_id=data[0].id if data else None, last_id=data[-1].id if data else None, has_more=has_more
    )
    # Written out here, for FastAPI would check every job a second time.
    return Response(page.model_dump_json(), media_type="application/json")


@router.get("/v1/videos/{video_id}", response_model=Video, responses=answers(404))
def retrieve(request: Request, response: Response, video_id: str) -> Video:
    """A job as it stands. One that failed is told with its error, by status 200."""
    service = service_of(request)
    job = _public(service, video_id)
    if not job.is_final:
        response.headers["openai-poll-after-ms"] = str(POLL_MS)
    return video_of(service, job)


@router.get(
    "/v1/videos/{video_id}/content",
    response_class=FileResponse,
    responses={
        **answers(404, 409, 410, 416, 422),
        200: {"content": {mime: _BYTES for _, mime in _VARIANTS.values()}, "description": "the file"},
        206: {"content": {mime: _BYTES for _, mime in _VARIANTS.values()}, "description": "a part of the file"},
    },
)
def content(
    request: Request, video_id: str, variant: Literal["video", "thumbnail", "spritesheet"] = "video"
) -> FileResponse:
    """The clip of a finished job, a picture of it, or a sheet of ten frames."""
    service = service_of(request)
    job = _public(service, video_id)
    _check_content(job)
    name, mime = _VARIANTS[variant]
    path = service.storage.video(job.id) / name
    if not path.is_file():
        raise UnknownJob(f"video {job.id} has no {variant}")
    return Sent(path, media_type=mime, filename=f"{job.id}{Path(name).suffix}")


@router.delete("/v1/videos/{video_id}", response_model=Deleted, responses=answers(404))
async def delete(request: Request, video_id: str) -> Deleted:
    """Gives a job up if it has not ended, and forgets it and its files."""
    service = service_of(request)
    job = _public(service, video_id)
    service.delete(job.id)
    return Deleted(id=job.id, object="video.deleted")


@router.post("/v1/videos/{video_id}/cancel", response_model=Video, responses=answers(404))
async def cancel(request: Request, video_id: str) -> Video:
    """Gives a job up and keeps its record; one that runs ends after the step under way."""
    service = service_of(request)
    job = _public(service, video_id)
    return video_of(service, service.cancel(job.id))


@router.post("/v1/videos/{video_id}/remix", response_model=Video, responses=_CREATING, openapi_extra=REMIX_BODY)
async def remix(request: Request, video_id: str, idempotency_key: IdempotencyKey = None) -> Video:
    """A new job with another prompt and the same settings, for which a finished clip is the reference."""
    service = service_of(request)
    source = _public(service, video_id)
    async with _body(request) as fields:
        return await _follow(request, source, fields, idempotency_key)


@router.post("/v1/videos/edits", response_model=Video, responses=_CREATING, openapi_extra=CLIP_BODY)
async def edit(request: Request, idempotency_key: IdempotencyKey = None) -> Video:
    """A new job for which a clip, finished here or uploaded, is the reference."""
    return await _from_clip(request, idempotency_key)


@router.post("/v1/videos/extensions", response_model=Video, responses=_CREATING, openapi_extra=CLIP_BODY)
async def extend(request: Request, idempotency_key: IdempotencyKey = None) -> Video:
    """A new job that goes on from a clip, finished here or uploaded; the answer's clip is the new part."""
    return await _from_clip(request, idempotency_key)


@router.get(
    "/v1/videos/{video_id}/events",
    response_class=Response,
    responses={**answers(404), 200: {"content": {"text/event-stream": {"schema": _EVENT}}}},
)
def events(request: Request, video_id: str) -> Response:
    """Server-sent events: `progress` with steps and previews, then one of `completed`, `failed` and `cancelled`."""
    service = service_of(request)
    job = _public(service, video_id)
    return EventStream(service, job.id, lambda row: video_of(service, row))


def video_of(service: Service, job: Job) -> Video:
    """A job as the API shows it."""
    settled, result = job.settled, job.result
    error = VideoError(code=job.error["code"], message=job.error["message"]) if job.error else None
    seconds = settled["num_frames"] / settled["fps"]
    return Video(
        id=job.id,
        model=service.names[0],
        prompt=job.request["prompt"],
        status=job.status,  # type: ignore[arg-type]
        progress=100 if job.status == table.COMPLETED else service.runs.live.progress(job.id),
        created_at=int(job.created_at),
        started_at=None if job.started_at is None else int(job.started_at),
        completed_at=int(job.ended_at) if job.status == table.COMPLETED and job.ended_at else None,
        expires_at=None if job.expires_at is None else int(job.expires_at),
        seconds=f"{seconds:.3f}".rstrip("0").rstrip("."),
        size=f"{settled['width']}x{settled['height']}",
        quality=job.request["quality"],
        error=error,
        remixed_from_video_id=job.request["remixed_from"],
        seed=settled["seed"],
        num_frames=settled["num_frames"],
        fps=settled["fps"],
        num_inference_steps=settled["num_inference_steps"],
        task=settled["task"],
        user=job.request["user"],
        file_name=f"{job.id}.mp4",
        queue_time_s=result.get("queue_time_s"),
        inference_time_s=result.get("inference_time_s"),
        stage_durations=result.get("stage_durations"),
        peak_memory_mb=result.get("peak_memory_mb"),
        metrics=_metrics(job) if job.request["wants_metrics"] and result else None,
    )


def _metrics(job: Job) -> dict[str, Any]:
    return {name: job.result[name] for name in ("stage_durations", "peak_memory_mb", "size_bytes", "profile")}


def _body(request: Request) -> AbstractAsyncContextManager[Fields]:
    return reading(request, max_part_bytes=2 * MAX_FILE_BYTES)


def _accepted(request: Request, job: Job) -> Video:
    service = service_of(request)
    service.runs.wake()
    return video_of(service, job)


async def _from_clip(request: Request, idempotency_key: str | None) -> Video:
    async with _body(request) as fields:
        if not fields.values.get("video"):
            raise InvalidRequest("video", None, 'it must be a file, or {"id": ...} of a finished video')
        job = await service_of(request).create(fields, owner_of(request), idempotency_key=idempotency_key)
    return _accepted(request, job)


async def _follow(request: Request, source: Job, fields: Fields, idempotency_key: str | None) -> Video:
    """A job with the settings of another one, whose clip is its reference."""
    _check_content(source)
    given = {name: value for name, value in fields.values.items() if value is not None}
    # The task and the seed belonged to what was made then.
    sampling = {
        name: value
        for name, value in source.request["sampling"].items()
        if value is not None and name not in ("seed", "task", "extra_args")
    }
    extra = {
        name: value
        for name, value in (source.request["sampling"]["extra_args"] or {}).items()
        if name not in ("seed", "task")
    }
    settings = {**sampling, **({"extra_params": extra} if extra else {})}
    values = Fields({**settings, **given, "video": {"id": source.id}}, is_json=fields.is_json)
    job = await service_of(request).create(
        values, owner_of(request), idempotency_key=idempotency_key, remixed_from=source.id
    )
    return _accepted(request, job)


def _public(service: Service, video_id: str) -> Job:
    """A job by its id; the jobs of synchronous requests are nobody else's."""
    job = service.jobs.get(video_id)
    if job.is_sync:
        raise UnknownJob(f"there is no video {video_id!r}")
    return job


def _check_content(job: Job) -> None:
    """Raises what is told of a clip that cannot be had."""
    if job.is_expired:
        raise Expired(f"video {job.id} was kept for its time and is gone")
    if job.status == table.FAILED:
        raise JobFailed(f"video {job.id} failed: {job.error['message']}")
    if job.status != table.COMPLETED:
        raise Conflict(f"video {job.id} is {job.status}", hint="ask again when it is completed")


async def _ended(service: Service, request: Request, job_id: str) -> Job:
    """Waits for a job's end, for its client, and for no longer than the server's limit.

    Raises:
        Cancelled: the client went away.
        DeadlineExceeded: it takes too long.
    """
    gone = asyncio.create_task(_disconnected(request))
    seconds = service.spec.video_sync_timeout
    until = asyncio.get_running_loop().time() + seconds
    try:
        with service.runs.live.listening(job_id) as news:
            while not (job := service.jobs.get(job_id)).is_final:
                if service.runs.is_stopping and job_id not in service.runs.running:
                    raise Unavailable("the server is stopping", hint="ask again")
                wait = until - asyncio.get_running_loop().time()
                heard = asyncio.create_task(news.get())
                done, _ = await asyncio.wait({gone, heard}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                heard.cancel()
                if gone in done:
                    raise Cancelled(job_id, "its client went away")
                if not done:
                    raise DeadlineExceeded(job_id, seconds, "while its client waited")
            return job
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Once(FileResponse):
    """The clip of a synchronous request, with its figures as headers; the job goes when the bytes have gone."""

    def __init__(self, service: Service, job: Job) -> None:
        result = job.result
        super().__init__(
            service.storage.video(job.id) / CLIP,
            media_type="video/mp4",
            headers={
                "X-Job-Id": job.id,
                "X-Model": json.dumps(service.names[0])[1:-1],
                "X-Inference-Time-S": f"{result['inference_time_s']:.3f}",
                "X-Stage-Durations": json.dumps(result["stage_durations"]),
                "X-Peak-Memory-MB": f"{result['peak_memory_mb']:.3f}",
                "X-Seed": str(job.settled["seed"]),
            },
        )
        self._service, self._job_id = service, job.id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with suppress(OmniReelError):
                self._service.delete(self._job_id)
