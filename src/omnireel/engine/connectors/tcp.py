"""Hand-over to another machine: parts as bytes over TCP, each array into memory of its final size.

Nothing is encrypted: for networks of one's own. Who does not know a channel's key gets nothing.
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from omnireel.engine.connectors.doorway import GREETING_SECONDS, Doorway
from omnireel.engine.message import Array, Kind, StageMessage, from_parts, to_parts
from omnireel.request import Handover

if TYPE_CHECKING:
    from omnireel.engine.connectors.channel import Channel

_PREFIX = struct.Struct("!II")
"""Bytes of the head, and of the list of arrays behind it."""

SEND_SECONDS = 600.0
"""How long one array may take; a clip over a slow network does."""

_MAX_HEAD_BYTES = 2**24
_MAX_ARRAY_BYTES = 2**36


class TcpConnector:
    """See `Connector`.

    Args:
        host: address of this machine that receivers can reach; a free port is taken.
    """

    is_local = False

    def __init__(self, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        self._host, self._port = host, int(listener.getsockname()[1])
        self._doorway = Doorway(listener, _TcpWire)

    def publish(self, channel: Channel) -> TcpInbox:
        """See `Connector.publish`."""
        self._doorway.publish(channel)
        return TcpInbox(host=self._host, port=self._port, key=channel.key)

    def withdraw(self, channel: Channel) -> None:
        """See `Connector.withdraw`."""
        self._doorway.withdraw(channel)

    def close(self) -> None:
        """See `Connector.close`."""
        self._doorway.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpInbox:
    """See `Inbox`; plain data, so that it may travel."""

    host: str
    port: int
    key: str

    def open(self) -> TcpReceiver:
        """See `Inbox.open`."""
        try:
            end = socket.create_connection((self.host, self.port), GREETING_SECONDS)
            end.sendall(self.key.encode())
        except OSError as error:
            raise ConnectionError(f"the stage before cannot be reached ({error})") from error
        return TcpReceiver(end)


class TcpReceiver:
    """See `Receiver`."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def receive(self, timeout_seconds: float) -> Handover | None:
        """See `Receiver.receive`."""
        try:
            if not select.select([self._socket], [], [], timeout_seconds)[0]:
                return None
            head_size, list_size = _PREFIX.unpack(self._exactly(_PREFIX.size))
            if head_size + list_size > _MAX_HEAD_BYTES:
                raise ValueError("a part of that size is none of ours")
            head, listed = self._exactly(head_size), self._exactly(list_size)
            body = from_parts(memoryview(head), [self._array(*spec) for spec in json.loads(listed)]).body
        except (OSError, ValueError, TypeError) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        if not isinstance(body, Handover):
            raise ConnectionError("what came is no hand-over")
        return body

    def close(self) -> None:
        """See `Receiver.close`."""
        self._socket.close()

    def _array(self, name: str, shape: list[int]) -> Array:
        kind = np.dtype(name)
        if kind.hasobject or math.prod(shape) * kind.itemsize > _MAX_ARRAY_BYTES:
            raise ValueError("an array of that kind is none of ours")
        found: Array = np.empty(shape, kind)
        self._into(found.reshape(-1).view(np.uint8).data)
        return found

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        self._into(memoryview(data))
        return data

    def _into(self, view: memoryview) -> None:
        while view.nbytes:
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionError("the other end closed the connection")
            view = view[count:]


class _TcpWire:
    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SEND_SECONDS)
        self._socket = end

    def send(self, part: Handover) -> None:
        head, arrays = to_parts(StageMessage(kind=Kind.HANDOVER, body=part))
        whole = [np.ascontiguousarray(item) for item in arrays]
        # Of the arrays as they are: contiguous ones have an axis at least.
        listed = json.dumps([[item.dtype.str, list(item.shape)] for item in arrays]).encode()
        self._socket.sendall(_PREFIX.pack(len(head), len(listed)) + head + listed)
        for item in whole:
            self._socket.sendall(item.reshape(-1).view(np.uint8).data)

    def close(self) -> None:
        self._socket.close()
