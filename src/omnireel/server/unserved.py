"""Endpoints of other servers that no pipeline of this one can answer yet: each says so, and names what is served."""

from __future__ import annotations

from fastapi import APIRouter

from omnireel.errors import NotServed
from omnireel.server.problem import answers

router = APIRouter(tags=["not served"])

SERVED = ("/v1/videos", "/v1/videos/sync", "/v1/models", "/v1/files")
_PATHS = (
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/audio/speech",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/lora/load",
    "/v1/lora/unload",
)


async def refuse() -> None:
    """Answers 400 with the endpoints that are served."""
    raise NotServed(SERVED)


for path in _PATHS:
    router.add_api_route(
        path, refuse, methods=["POST"], status_code=400, response_model=None, responses=answers(), name=path
    )
