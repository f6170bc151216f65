"""What connectors over sockets have in common: a listening socket, and a thread for each who receives.

A receiver sends the key of its channel and is sent the parts, from the first to the last. One that names no channel, or does
not name one in time, is hung up on.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from omnireel.engine.connectors.channel import Channel
    from omnireel.request import Handover

logger = logging.getLogger(__name__)

KEY_BYTES = 32
GREETING_SECONDS = 10.0
"""How long a receiver may take to say which channel it wants."""

MAX_GREETINGS = 64
"""Callers that may be at it at a time; each has a thread."""

SEND_SECONDS = 600.0
"""How long a receiver may take nothing: it may be in a step of minutes."""

_TICK_SECONDS, _AGAIN_SECONDS = 1.0, 0.1


class Wire(Protocol):
    """How a part goes over one connection."""

    def send(self, part: Handover) -> None:
        """Raises OSError when the other end is gone."""
        ...

    def close(self) -> None:
        """Hangs up."""
        ...


class Doorway:
    """Serves channels at a listening socket, which it owns.

    Args:
        listener: bound and listening.
        wire: what speaks over a connection.
    """

    def __init__(self, listener: socket.socket, wire: Callable[[socket.socket], Wire]) -> None:
        self._listener = listener
        self._listener.settimeout(_TICK_SECONDS)
        self._wire = wire
        self._channels: dict[str, Channel] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._greetings = threading.BoundedSemaphore(MAX_GREETINGS)
        self._thread = threading.Thread(target=self._accept, name="omnireel-connector", daemon=True)
        self._thread.start()

    def publish(self, channel: Channel) -> None:
        """See `Connector.publish`."""
        with self._lock:
            self._channels[channel.key] = channel

    def withdraw(self, channel: Channel) -> None:
        """See `Connector.withdraw`."""
        with self._lock:
            self._channels.pop(channel.key, None)
        channel.close()

    def close(self) -> None:
        """See `Connector.close`."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            left = list(self._channels.values())
        if was_closed:
            return
        for channel in left:
            self.withdraw(channel)
        # Closing alone would leave a thread in accept; shutdown wakes it where that is possible, the time-out elsewhere.
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("the listening socket was not connected")
        self._listener.close()
        self._thread.join(2 * _TICK_SECONDS)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
                peer = threading.Thread(
                    target=self._serve, args=(connection,), name="omnireel-connector-peer", daemon=True
                )
                peer.start()
            except TimeoutError:
                continue
            except (OSError, RuntimeError) as error:
                # Closed; or out of descriptors or threads, which may be otherwise in a moment.
                if not self._is_closed:
                    logger.warning("nobody can be let in now: %s", error)
                    time.sleep(_AGAIN_SECONDS)

    def _serve(self, connection: socket.socket) -> None:
        wire: Wire | None = None
        try:
            if not self._greetings.acquire(blocking=False):
                logger.warning(
                    "more than %d callers who have not said what they want; another one was hung up on", MAX_GREETINGS
                )
                return
            try:
                key = greeting(connection, KEY_BYTES, GREETING_SECONDS).decode("ascii", "replace")
            finally:
                self._greetings.release()
            with self._lock:
                channel = self._channels.get(key)
            if channel is None:
                logger.warning("a receiver asked for a hand-over that is not there")
                return
            wire = self._wire(connection)
            index, is_last = 0, False
            while not is_last:
                part = channel.part(index, _TICK_SECONDS)
                if part is not None:
                    wire.send(part)
                    index, is_last = index + 1, part.is_last
        except OSError as error:
            logger.debug("a receiver is gone: %s", error)
        finally:
            connection.close() if wire is None else wire.close()


def greeting(connection: socket.socket, size: int, seconds: float) -> bytes:
    """What a caller says first, all of it within that time: a byte now and then does not keep a place.

    Raises:
        OSError: it did not, or hung up.
    """
    data, until = b"", time.monotonic() + seconds
    while len(data) < size:
        connection.settimeout(max(0.001, until - time.monotonic()))
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the other end closed the connection")
        data += more
    return data
