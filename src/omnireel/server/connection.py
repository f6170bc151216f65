"""One connection, which is not kept for a client that sends no request, or does not read its answer. uvicorn waits for ever for both."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0
"""For a request's head to be whole, from the connection or its first byte on."""
STALL_SECONDS = 60.0
"""Longest time in which a client takes nothing of its answer; players that pause ask for the rest again."""


class Connection(H11Protocol):
    """uvicorn's, with these two limits."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._head = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self._end_head()
        self._end_stall()

    def data_received(self, data: bytes) -> None:
        """Some of a head or a body has come."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            # The door counts and times the body.
            self._end_head()
        elif self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """More waits for the client than should."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has taken of that."""
        super().resume_writing()
        self._end_stall()

    def _watch(self, waiting: int) -> None:
        """Ends the connection unless less than that waits by and by."""
        self._stall = self.loop.call_later(STALL_SECONDS, self._look, waiting)

    def _look(self, waiting: int) -> None:
        now = self.transport.get_write_buffer_size()
        if now < waiting:
            self._watch(now)
        else:
            self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for a while; an answer that was not fetched by now is not waited for."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _end_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
