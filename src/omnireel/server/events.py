"""A job's way as server-sent events, for pages and scripts that want to see it happen."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from fastapi.responses import StreamingResponse

from omnireel.errors import OmniReelError
from omnireel.media.image import picture_bytes

if TYPE_CHECKING:
    from omnireel.request import FramesU8
    from omnireel.server.jobs import Job
    from omnireel.server.schemas import Video
    from omnireel.server.service import Service

HEARTBEAT_SECONDS = 15.0
"""Proxies close what is silent for a minute or so."""


class EventStream(StreamingResponse):
    """The events of one job until it ends; the first tells how it stands."""

    def __init__(self, service: Service, job_id: str, shown: Callable[[Job], Video]) -> None:
        super().__init__(
            _told(service, job_id, shown), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )


async def _told(service: Service, job_id: str, shown: Callable[[Job], Video]) -> AsyncIterator[bytes]:
    live = service.runs.live
    with live.listening(job_id) as news:
        event: dict[str, Any] | None = {**live.facts(job_id), "preview": live.preview(job_id)}
        while True:
            if event is not None:
                yield await _line(event)
            try:
                job = await asyncio.to_thread(service.jobs.get, job_id)
            except OmniReelError:
                yield _event("deleted", {"id": job_id})
                return
            if job.is_final:
                yield _event(job.status, shown(job).model_dump())
                return
            if service.runs.is_stopping:
                # The client comes back by itself, and then finds the next server.
                return
            try:
                event = await asyncio.wait_for(news.get(), HEARTBEAT_SECONDS)
            except TimeoutError:
                event = None
                yield b": still here\n\n"


async def _line(event: dict[str, Any]) -> bytes:
    preview: FramesU8 | None = event["preview"]
    data = {name: value for name, value in event.items() if name not in ("event", "preview")}
    if preview is not None:
        picture = await asyncio.to_thread(picture_bytes, preview, "jpeg")
        data["preview"] = "data:image/jpeg;base64," + base64.b64encode(picture).decode()
    return _event(event["event"], data)


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
