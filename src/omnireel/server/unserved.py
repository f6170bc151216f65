"""Endpoints of other servers that no pipeline of this one can answer yet: each says so, and names what is served."""

from __future__ import annotations

from fastapi import APIRouter, Request

from omnireel.errors import NotServed
from omnireel.server.problem import answers
from omnireel.server.schemas import AdapterList
from omnireel.server.service import service_of

router = APIRouter(tags=["not served"])

SERVED = ("/v1/videos", "/v1/videos/sync", "/v1/models", "/v1/files", "/v1/lora")
_PATHS = (
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/audio/speech",
    "/v1/audio/voices",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/lora/load",
    "/v1/lora/unload",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
)


@router.get("/v1/lora", response_model=AdapterList, responses=answers())
async def list_adapters() -> AdapterList:
    """The adapters that are loaded: none, for this version loads none."""
    return AdapterList(data=[])


async def refuse(request: Request) -> None:
    """Answers 400 with the model, its tasks, and the endpoints that are served; GET too, which some of them have elsewhere."""
    service = service_of(request)
    raise NotServed(service.names[0], service.runs.engine.checkpoint.facts.tasks, SERVED)


for path in _PATHS:
    for method in ("GET", "POST"):
        router.add_api_route(
            path,
            refuse,
            methods=[method],
            status_code=400,
            response_model=None,
            responses=answers(),
            name=f"{method} {path}",
        )
