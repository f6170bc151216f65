"""Hand-over to another machine: parts as bytes over TCP, each array into memory of its final size.

Nothing is encrypted: for networks of one's own. Who does not know a channel's key gets nothing.
"""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnireel.engine import stream
from omnireel.engine.connectors.doorway import GREETING_SECONDS, SEND_SECONDS, Doorway
from omnireel.engine.message import Kind, StageMessage
from omnireel.request import Handover

if TYPE_CHECKING:
    from omnireel.engine.connectors.channel import Channel


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
            body = stream.read(self._socket).body
        except (OSError, ValueError) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        if not isinstance(body, Handover):
            raise ConnectionError("what came is no hand-over")
        return body

    def close(self) -> None:
        """See `Receiver.close`."""
        self._socket.close()


class _TcpWire:
    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SEND_SECONDS)
        self._socket = end

    def send(self, part: Handover) -> None:
        stream.write(self._socket, StageMessage(kind=Kind.HANDOVER, body=part))

    def close(self) -> None:
        self._socket.close()
