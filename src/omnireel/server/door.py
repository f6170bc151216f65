"""What every request passes on its way in and out: its id, the key, limits of its body, and the last word on bugs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect

from omnireel.errors import InvalidRequest, OmniReelError, TooLarge, TooSlow, Unauthorized
from omnireel.request import new_request_id
from omnireel.server import problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from omnireel.server.service import Service

logger = logging.getLogger(__name__)

OPEN_PATHS = ("/", "/health", "/health/ready", "/health/live")
"""What probes and browsers ask without a key; nothing of a request or its result is told there."""

BODY_SECONDS = 30.0
"""Longest silence within a body."""


class Door:
    """ASGI middleware; see `Keys.owner` for what it puts into the scope as "omnireel.owner"."""

    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        self._app, self._service = app, service
        self._max_bytes = service.spec.max_upload_mib * 2**20

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope["omnireel.request_id"] = new_request_id()
        status = 0

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=list(message["headers"]))
                headers["x-request-id"] = request_id
                headers["x-content-type-options"] = "nosniff"
                message = {**message, "headers": headers.raw}
            try:
                await send(message)
            except Exception as error:
                # Whatever goes wrong here is the connection's end, for which each server has errors of its own.
                raise ClientDisconnect from error

        try:
            headers = Headers(scope=scope)
            if "transfer-encoding" in headers and "content-length" in headers:
                await _ambiguous(scope, receive, told)
                return
            self._check_page(scope["method"], headers)
            if scope["path"] not in OPEN_PATHS:
                scope["omnireel.owner"] = self._service.keys.owner(headers.get("authorization"))
            await self._app(scope, _Body(headers, receive, self._max_bytes).receive, told)
        except OmniReelError as error:
            if not status:
                await problem.response(error)(scope, receive, told)
        except ClientDisconnect:
            logger.debug("the client of request %s went away", request_id)
        except Exception:
            # The connection breaks where the answer has begun, so that nobody takes a part for the whole.
            if status:
                raise
            logger.exception("request %s failed", request_id)
            await problem.bug(request_id)(scope, receive, told)
        finally:
            self._service.measures.answered(scope["method"], status or 499)

    def _check_page(self, method: str, headers: Headers) -> None:
        """Any page that its user visits could send forms to a server of this machine that asks for no key.

        Raises:
            Unauthorized: a browser says that this comes from a page that is not listed.
        """
        if self._service.keys or method in ("GET", "HEAD", "OPTIONS") or headers.get("sec-fetch-site") != "cross-site":
            return
        listed = self._service.spec.cors_origins or ()
        if "*" not in listed and headers.get("origin") not in listed:
            raise Unauthorized(
                "pages of other origins may not use this server", hint="name theirs in --cors-origins, or set a key"
            )


async def _ambiguous(scope: Scope, receive: Receive, send: Send) -> None:
    """Ends a connection on which a proxy may see another end of this request, and so another next one, than we do."""
    name = "Content-Length"
    answer = problem.response(InvalidRequest(name, "...", "it must not come beside Transfer-Encoding"))
    answer.headers["connection"] = "close"
    await answer(scope, receive, send)


class _Body:
    """The messages of a request, counted and timed for as long as they are of its body."""

    def __init__(self, headers: Headers, receive: Receive, max_bytes: int) -> None:
        self._receive, self._max_bytes = receive, max_bytes
        self._total, self._is_whole = 0, False
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > max_bytes:
            raise self._too_large()

    async def receive(self) -> Message:
        """The next message.

        Raises:
            TooLarge, TooSlow: the body is not taken any further.
        """
        if self._is_whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), BODY_SECONDS)
        except TimeoutError:
            raise TooSlow(f"no byte of the body came for {BODY_SECONDS:g} s") from None
        self._is_whole = not message.get("more_body", False)
        self._total += len(message.get("body", b""))
        if self._total > self._max_bytes:
            raise self._too_large()
        return message

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self._max_bytes} bytes", hint="send fewer or smaller files")
