"""The one translation of errors to HTTP. What a client may see is an OmniReelError's own words; of a bug only the request's id."""

from __future__ import annotations

import logging
import math
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from omnireel.errors import (
    DeadlineExceeded,
    EngineError,
    OmniReelError,
    QueueFull,
    Unavailable,
    UnknownModel,
    WorkerDied,
)
from omnireel.server.schemas import ErrorBody

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5
"""When to come back to a server that starts or stops; nobody can know."""

_PATH = re.compile(r"(?<![\w.])/(?:[^\s/:'\"]+/)*[^\s/:'\"]+")
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
STATUSES = {
    400: "a field has a value that is not allowed",
    401: "no key came, or one that is not known",
    404: "there is no such thing",
    405: "the path does not take this method",
    408: "the body came too slowly",
    409: "the thing is in another state",
    410: "it was kept for its time",
    413: "the body is too large",
    415: "the body is of a type that is not read",
    416: "the file has no such range",
    422: "the job failed",
    429: "too much waits; Retry-After tells when to come back",
    499: "the client went away, or the job was cancelled",
    500: "a bug; the answer has the request's id",
    503: "the server is starting, stopping, asleep or broken",
    504: "it took too long",
    507: "the disk is full or cannot be written",
}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What an endpoint's document says of errors: these, and those that any can give."""
    every = sorted({*statuses, 400, 401, 408, 413, 500, 503, 507})
    return {status: {"model": ErrorBody, "description": STATUSES[status]} for status in every}


def body(status: int, message: str, *, param: str | None = None, code: str = "", hint: str = "") -> dict[str, Any]:
    """An error as the answer's content; the hint is part of the message, for clients show no other field."""
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    text = f"{message} ({hint})" if hint else message
    return {"error": {"message": text, "type": kind, "param": param, "code": code or str(status)}}


def public(error: OmniReelError) -> OmniReelError:
    """An error as clients may see it: what a worker wrote before it died names paths of this machine."""
    if isinstance(error, WorkerDied):
        return WorkerDied(error.details["worker"], error.details["how"], hint=error.hint)
    return error


def line(text: str) -> str:
    """What an engine says of a worker's death, for everybody: without the worker's last lines, and without paths."""
    return _PATH.sub("[path]", text.partition("; its last lines: ")[0])


def response(error: OmniReelError) -> JSONResponse:
    """The answer that tells of an error."""
    error = public(error)
    headers = {}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(math.ceil(error.details["retry_after_seconds"]))
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(RETRY_SECONDS)
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    named = "model" if isinstance(error, UnknownModel) else None
    param = error.details.get("field") or error.details.get("name") or named
    content = body(
        error.http_status, error.message, param=None if param is None else str(param), code=error.code, hint=error.hint
    )
    return JSONResponse(content, error.http_status, headers)


def install(app: FastAPI) -> None:
    """Makes every answer of the app that is an error look alike."""
    app.add_exception_handler(OmniReelError, _known)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)


async def _known(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OmniReelError)
    if isinstance(error, EngineError) and not isinstance(error, DeadlineExceeded | Unavailable):
        logger.error("%s %s: %s", request.method, request.url.path, error.message)
    return response(error)


async def _http(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(body(error.status_code, str(error.detail)), error.status_code, error.headers)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    content = body(400, f"{field}: {first['msg']}", param=field, code="invalid_request")
    return JSONResponse(content, 400)


def bug(request_id: str) -> JSONResponse:
    """The answer to a request that met a bug; the log has the rest."""
    return JSONResponse(body(500, f"request {request_id} failed; this is a bug in omnireel", code="bug"), 500)
