"""Connections of clients that send too slowly, or do not read."""

import asyncio
import contextlib
import socket

import pytest
import uvicorn

import omnireel.server.connection as room
from omnireel.server.connection import Connection

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"
PATIENCE_SECONDS = 20.0


async def echo(scope, receive, send):
    """Reads the body and answers."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def talked(app, talk):
    """What `talk(reader, writer)` gives, of a connection to a server of this app."""

    async def main():
        config = uvicorn.Config(app, http=Connection, lifespan="off", ws="none", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=2**16)
            try:
                return await asyncio.wait_for(talk(reader, writer), PATIENCE_SECONDS)
            finally:
                writer.transport.abort()
                server.should_exit = True
                await serving

    return asyncio.run(main())


async def dripped(reader, writer):
    """Sends a head that never ends, until the server has enough of it."""
    ended = asyncio.create_task(reader.read())
    writer.write(b"GET / HTTP/1.1\r\nX-Slow: ")
    while not ended.done():
        with contextlib.suppress(ConnectionError):
            writer.write(b"x")
        await asyncio.sleep(0.02)
    with contextlib.suppress(ConnectionError):
        return await ended
    return b""


async def answer(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    return head.split()[1], await reader.readexactly(2)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(room, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(room, "STALL_SECONDS", 0.4)


@pytest.mark.usefixtures("short")
def test_a_client_that_asks_nothing_is_not_kept():
    async def talk(reader, _):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
        return b""

    assert talked(echo, talk) == b""


@pytest.mark.usefixtures("short")
def test_a_head_that_never_ends_is_given_up_also_after_an_answer():
    assert talked(echo, dripped) == b""

    async def talk(reader, writer):
        writer.write(HEAD + b"ab")
        return await answer(reader), await dripped(reader, writer)

    assert talked(echo, talk) == ((b"200", b"ok"), b"")


@pytest.mark.usefixtures("short")
def test_a_body_may_take_longer_than_a_head():
    async def talk(reader, writer):
        writer.write(HEAD + b"a")
        await asyncio.sleep(0.5)
        writer.write(b"b")
        return await answer(reader)

    assert talked(echo, talk) == (b"200", b"ok")


@pytest.mark.usefixtures("short")
def test_a_client_that_does_not_read_is_not_kept():
    ended = asyncio.Event()

    async def endless(scope, receive, send):
        async def pour():
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})

        pouring = asyncio.create_task(pour())
        while (await receive())["type"] != "http.disconnect":
            pass
        pouring.cancel()
        ended.set()

    async def talk(_, writer):
        writer.transport.pause_reading()
        writer.write(HEAD + b"ab")
        await ended.wait()

    talked(endless, talk)
    assert ended.is_set()


@pytest.mark.usefixtures("short")
def test_a_client_that_reads_slowly_gets_everything():
    whole = 4 * 2**20

    async def large(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * whole})

    async def talk(reader, writer):
        writer.write(HEAD + b"ab")
        await reader.readuntil(b"\r\n\r\n")
        total = 0
        while total < whole:
            total += len(await reader.read(2**17))
            await asyncio.sleep(0.02)
        return total

    assert talked(large, talk) >= whole
