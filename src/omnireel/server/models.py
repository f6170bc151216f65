"""/v1/models: what is served, by every name that requests may give it."""

from __future__ import annotations

from fastapi import APIRouter, Request

from omnireel.errors import UnknownModel
from omnireel.server.problem import answers
from omnireel.server.schemas import Model, ModelList
from omnireel.server.service import Service, service_of

router = APIRouter(tags=["models"])


@router.get("/v1/models", response_model=ModelList, responses=answers())
async def list_models(request: Request) -> ModelList:
    """Every name of the served model; the first is the one that answers use."""
    service = service_of(request)
    return ModelList(data=[_model(service, name) for name in service.names])


@router.get("/v1/models/{model_id:path}", response_model=Model, responses=answers(404))
async def retrieve_model(request: Request, model_id: str) -> Model:
    """One of these names."""
    service = service_of(request)
    if model_id not in service.names:
        raise UnknownModel(model_id[:80], service.names)
    return _model(service, model_id)


def _model(service: Service, name: str) -> Model:
    checkpoint = service.runs.engine.checkpoint
    return Model(id=name, created=int(service.started_at), root=checkpoint.name, tasks=list(checkpoint.facts.tasks))
