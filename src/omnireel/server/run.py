"""A server as a process: its socket, its signals, its start and its end.

The socket listens before the model is loaded, so that probes hear "starting" rather than nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from omnireel.engine.staged import make_engine
from omnireel.errors import EngineError, SetupError
from omnireel.observe import env
from omnireel.server.app import make_app
from omnireel.server.connection import Connection
from omnireel.server.service import Service

if TYPE_CHECKING:
    from omnireel.config import ResolvedConfig, ServerSpec
    from omnireel.engine.child import EarlyChildren

logger = logging.getLogger(__name__)

THREADS = 64
"""For what blocks; each file that is fetched holds one while it comes."""
LAST_ANSWERS_SECONDS = 5
KEEP_ALIVE_SECONDS = 75
"""Longer than the minute after which proxies reuse a connection no more."""
BACKLOG, MAX_FILES = 2048, 65_536


def serve(
    config: ResolvedConfig,
    *,
    on_listening: Callable[[str], None],
    on_ready: Callable[[str], None],
    early: EarlyChildren | None = None,
) -> None:
    """Serves until SIGINT, SIGTERM or SIGHUP; a second one ends the process at once. For the main thread.

    Args:
        config: settled settings.
        on_listening: is told the server's address when its socket listens.
        on_ready: is told the same when the model is loaded.
        early: processes for workers that were started while this one still imported.

    Raises:
        OmniReelError: the model, the storage or the socket cannot be used.
        EngineError: every replica was given up, and the settings say that the server ends then.
    """
    _allow_connections()
    # What uvicorn warns of goes where our own lines go.
    logging.getLogger("uvicorn").handlers = logging.getLogger("omnireel").handlers
    engines = partial(make_engine, config, default_backend="mp", early=early)
    with (
        contextlib.closing(_socket(config.server)) as listener,
        contextlib.closing(Service(config, engines)) as service,
        _uploads_in(service.storage.incoming),
    ):
        if not service.keys and not _is_loopback(config.server.host):
            logger.warning("everybody who reaches %s may use the server: no API key is set", config.server.host)
        asyncio.run(_serve(service, listener, on_listening, on_ready))


async def _serve(
    service: Service, listener: socket.socket, on_listening: Callable[[str], None], on_ready: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="omnireel-server"))
    server = _Server(
        uvicorn.Config(
            make_app(service),
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=LAST_ANSWERS_SECONDS,
        )
    )
    with _signals(loop) as stop:
        answering = loop.create_task(server.serve(sockets=[listener]))
        address = _address(listener)
        on_listening(address)
        starting, stopping = loop.create_task(service.start()), loop.create_task(stop.wait())
        failing = loop.create_task(service.runs.failed())
        try:
            await asyncio.wait({starting, stopping, answering}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and starting.exception() is None:
                _keep_for_good()
                on_ready(address)
                _notify("READY=1")
                ends = {stopping, answering, *({failing} if service.spec.exit_on_engine_failure else ())}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            failure = service.runs.why_not if failing.done() and not stop.is_set() else None
        finally:
            _notify("STOPPING=1")
            stopping.cancel()
            failing.cancel()
            await service.stop()
            server.should_exit = True
            await answering
        await asyncio.wait({starting})
        if not stop.is_set():
            # Why there was nothing to serve.
            await starting
        starting.cancelled() or starting.exception()
        if failure is not None:
            raise EngineError(f"the server ends, for {failure[0]}", hint=failure[1] or "")


@contextlib.contextmanager
def _uploads_in(folder: Path) -> Iterator[None]:
    """Large uploads are written here while they come: the usual folder may be memory, or one that nobody watches."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


class _Server(uvicorn.Server):
    """Without uvicorn's own signal handlers, which would end the process by the signal that asked it to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.Event]:
    """An event that the first signal sets. Ignored signals stay so, as nohup wants it."""
    stop = asyncio.Event()

    def hear(signum: int) -> None:
        if stop.is_set():
            os._exit(128 + signum)
        stop.set()

    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heard = [signum for signum, handler in before.items() if handler is not signal.SIG_IGN]
    for signum in heard:
        loop.add_signal_handler(signum, hear, signum)
    try:
        yield stop
    finally:
        for signum in heard:
            loop.remove_signal_handler(signum)
            signal.signal(signum, before[signum])


def _socket(spec: ServerSpec) -> socket.socket:
    try:
        found = socket.getaddrinfo(spec.host, spec.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        # Of sockets that do not name their protocol asyncio leaves Nagle's algorithm on: 40 ms an answer.
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no such name"
        raise SetupError(
            f"cannot listen at {spec.host} port {spec.port} ({why})", hint="give another one with --host and --port"
        ) from None
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _allow_connections() -> None:
    """Each connection is an open file, and the usual limit is for programs that have few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _keep_for_good() -> None:
    """What is loaded by now stays, so it is not looked through for garbage again and again: a tenth of a second each time."""
    gc.collect()
    gc.freeze()


def _notify(state: str) -> None:
    """Tells systemd, where it started the server as a service of type "notify"."""
    place = env.read("NOTIFY_SOCKET")
    if not place:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
        # A leading @ stands for the zero byte of an abstract address.
        sender.sendto(state.encode(), "\0" + place[1:] if place.startswith("@") else place)
