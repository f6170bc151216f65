"""The app: every router behind one door, and the document that says what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware

from omnireel import __version__
from omnireel.server import files, health, models, playground, problem, unserved, videos
from omnireel.server.door import Door

if TYPE_CHECKING:
    from omnireel.server.service import Service

ROUTERS = (videos.router, models.router, files.router, health.router, unserved.router, playground.router)
_SHOWN_HEADERS = ("X-Request-Id", "Retry-After", "openai-poll-after-ms")


def make_app(service: Service) -> FastAPI:
    """The ASGI app of one server. Its pages of documentation are left out: they would load scripts from elsewhere."""
    app = FastAPI(
        title="omnireel", version=__version__, docs_url=None, redoc_url=None, root_path=service.spec.root_path
    )
    app.state.service = service
    problem.install(app)
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(Door, service=service)
    if service.spec.cors_origins:
        # Outside of the door, as browsers ask for permission without a key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.spec.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=_SHOWN_HEADERS,
        )
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made once: FastAPI's, without the answer 422 of its own, for which ours is 400."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for operations in made["paths"].values():
            for operation in operations.values():
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]
        for name in ("HTTPValidationError", "ValidationError"):
            made["components"]["schemas"].pop(name, None)
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}, {}]
        app.openapi_schema = made
    return app.openapi_schema
