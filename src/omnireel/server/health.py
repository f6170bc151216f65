"""What whoever runs the server asks: whether it lives, whether it serves, its figures and its version."""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter, Request, Response

from omnireel import __version__
from omnireel.errors import StorageFailed
from omnireel.observe.metrics import CONTENT_TYPE
from omnireel.server import jobs as table
from omnireel.server.problem import answers
from omnireel.server.schemas import Alive, Health, Profiled, Slept, Version
from omnireel.server.service import service_of

logger = logging.getLogger(__name__)
router = APIRouter(tags=["operation"])

_NOT_READY = {**answers(), 503: {"model": Health, "description": "requests are not run now; status says why"}}


@router.get("/health", response_model=Health, responses=_NOT_READY)
@router.get("/health/ready", response_model=Health, responses=_NOT_READY)
def ready(request: Request, response: Response) -> Health:
    """200 while jobs are run, 503 while the model loads, sleeps, or is gone."""
    service = service_of(request)
    status = service.runs.status
    if status != "ok":
        response.status_code = 503
    reason, hint = service.runs.why_not
    return Health(
        status=status,
        reason=reason,
        hint=hint,
        queued=service.jobs.count(table.QUEUED),
        running=len(service.runs.running),
    )


@router.get(
    "/health/live",
    response_model=Alive,
    responses={
        **answers(),
        503: {"model": Alive, "description": "nothing is run here any more, until it is restarted"},
    },
)
async def live(request: Request, response: Response) -> Alive:
    """200 for as long as the server answers, also while it is not ready; 503 when its engine is gone for good."""
    if service_of(request).runs.status != "failed":
        return Alive(status="ok")
    response.status_code = 503
    return Alive(status="failed")


@router.get(
    "/metrics",
    response_class=Response,
    responses={**answers(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(request: Request) -> Response:
    """Figures of the server and its engine in Prometheus' words."""
    service = service_of(request)
    text = service.measures.text() + service.runs.engine.metrics.text()
    return Response(text, media_type=CONTENT_TYPE)


@router.post("/v1/omni/sleep", response_model=Slept, responses=answers())
async def sleep(request: Request) -> Slept:
    """Gives the model's memory back when what runs has ended; jobs are accepted and wait."""
    service = service_of(request)
    await service.runs.sleep()
    return Slept(is_sleeping=service.runs.is_asleep)


@router.post("/v1/omni/wakeup", response_model=Slept, responses=answers())
async def wake_up(request: Request) -> Slept:
    """Loads the model again and goes on with what waits."""
    service = service_of(request)
    await service.runs.wake_up()
    return Slept(is_sleeping=service.runs.is_asleep)


@router.post("/start_profile", response_model=Profiled, responses=answers(409))
async def start_profile(request: Request) -> Profiled:
    """Begins to record what every process of the model computes, for trace viewers; needs --torch-profiler-dir. A body is not read."""
    try:
        await asyncio.to_thread(service_of(request).runs.engine.start_profile)
    except StorageFailed as error:
        raise _told_without_paths(error) from None
    return Profiled(is_profiling=True)


@router.post("/stop_profile", response_model=Profiled, responses=answers(409))
async def stop_profile(request: Request) -> Profiled:
    """Ends that; answers with the names of the files, which lie below --torch-profiler-dir where the model runs."""
    try:
        paths = await asyncio.to_thread(service_of(request).runs.engine.stop_profile)
    except StorageFailed as error:
        raise _told_without_paths(error) from None
    return Profiled(is_profiling=False, files=[path.name for path in paths])


def _told_without_paths(error: StorageFailed) -> StorageFailed:
    logger.error("%s", error.message)
    return StorageFailed("the trace cannot be written", hint="tell who runs the server; its log says why")


@router.get("/version", response_model=Version, responses=answers())
async def version() -> Version:
    """The version of omnireel."""
    return Version(version=__version__)
