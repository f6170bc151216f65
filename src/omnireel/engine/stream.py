"""Messages over TCP, between machines: a head, a list of arrays, and each array into memory of its final size.

Nothing is encrypted: for networks of one's own.
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import socket
import struct
import threading

import numpy as np

from omnireel.engine.link import LinkClosed
from omnireel.engine.message import Array, StageMessage, from_parts, to_parts

_PREFIX = struct.Struct("!II")
"""Bytes of the head, and of the list of arrays behind it."""

_MAX_HEAD_BYTES = 2**28
_MAX_ARRAY_BYTES = 2**36
_CHUNK_BYTES = 2**20
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


def write(end: socket.socket, message: StageMessage) -> None:
    """Sends a message; the socket's time-out is that of each MiB, so a slow network may take its time.

    Raises:
        OSError: the other end is gone, or takes nothing.
        TypeError: the message holds what may not travel.
    """
    head, arrays = to_parts(message)
    whole = [np.ascontiguousarray(item) for item in arrays]
    # Of the arrays as they are: contiguous ones have an axis at least.
    listed = json.dumps([[item.dtype.str, list(item.shape)] for item in arrays]).encode()
    _send(end, memoryview(_PREFIX.pack(len(head), len(listed)) + head + listed))
    for item in whole:
        _send(end, item.reshape(-1).view(np.uint8).data)


def read(end: socket.socket) -> StageMessage:
    """The next message.

    Raises:
        OSError: the other end is gone, or stopped in the middle.
        ValueError: what came is no message.
    """
    head_size, list_size = _PREFIX.unpack(_exactly(end, _PREFIX.size))
    if head_size + list_size > _MAX_HEAD_BYTES:
        raise ValueError("a message of that size is none of ours")
    head, listed = _exactly(end, head_size), _exactly(end, list_size)
    try:
        specs = [(np.dtype(name), tuple(shape)) for name, shape in json.loads(listed)]
        return from_parts(memoryview(head), [_array(end, kind, shape) for kind, shape in specs])
    except TypeError as error:
        raise ValueError(f"what came is no message: {error}") from error


class StreamLink:
    """One end of a TCP connection; sends and receives as `SocketLink` does.

    Args:
        end: a connected socket, which it owns from now on.
        send_seconds: how long the other end may take nothing of a message, or send nothing in the middle of one; None for ever.
    """

    def __init__(self, end: socket.socket, *, send_seconds: float | None = None) -> None:
        self._socket = end
        end.settimeout(send_seconds)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Else who waits for a machine that lost its power waits for ever.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._lock = threading.Lock()
        # select() fails in a server that has a thousand files and sockets open.
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, message: StageMessage) -> None:
        """See `Wire.send`."""
        try:
            with self._lock:
                write(self._socket, message)
        except OSError as error:
            raise LinkClosed(str(error) or type(error).__name__) from error

    def receive(self, timeout_seconds: float) -> StageMessage | None:
        """See `Wire.receive`.

        Raises:
            LinkClosed: also when what came is no message.
        """
        try:
            return read(self._socket) if self._poll.poll(1000 * timeout_seconds) else None
        except (OSError, ValueError) as error:
            raise LinkClosed(str(error) or type(error).__name__) from error

    def hang_up(self) -> None:
        """Wakes whoever waits here; for any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Lets the other end know; what it sends afterwards is lost."""
        self._socket.close()


def _send(end: socket.socket, view: memoryview) -> None:
    # The time-out of sendall is that of all that it is given.
    for at in range(0, view.nbytes, _CHUNK_BYTES):
        end.sendall(view[at : at + _CHUNK_BYTES])


def _array(end: socket.socket, kind: np.dtype, shape: tuple[int, ...]) -> Array:
    if kind.hasobject or math.prod(shape) * kind.itemsize > _MAX_ARRAY_BYTES:
        raise ValueError("an array of that kind is none of ours")
    found: Array = np.empty(shape, kind)
    _into(end, found.reshape(-1).view(np.uint8).data)
    return found


def _exactly(end: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    _into(end, memoryview(data))
    return data


def _into(end: socket.socket, view: memoryview) -> None:
    while view.nbytes:
        count = end.recv_into(view)
        if not count:
            raise ConnectionError("the other end closed the connection")
        view = view[count:]
