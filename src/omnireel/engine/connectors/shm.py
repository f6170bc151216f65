"""Hand-over to another process of this machine: large arrays lie in shared memory, of which only the descriptor travels.

The memory has no name (see engine/blocks), so nothing of it can be left behind.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omnireel.engine.connectors.doorway import GREETING_SECONDS, SEND_SECONDS, Doorway
from omnireel.engine.link import SocketLink
from omnireel.engine.message import Kind, StageMessage
from omnireel.request import Handover

if TYPE_CHECKING:
    from omnireel.engine.connectors.channel import Channel

_PREFIX, _SOCKET = "omnireel-", "stages"
_NEW_SECONDS = 60.0
"""A folder younger than this may be one whose process does not listen yet."""


class SharedMemoryConnector:
    """See `Connector`. Its socket lies in a folder that only this user may enter."""

    is_local = False

    def __init__(self) -> None:
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._path = self._folder / _SOCKET
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._path))
        listener.listen()
        self._doorway = Doorway(listener, _SharedWire)

    def publish(self, channel: Channel) -> SharedMemoryInbox:
        """See `Connector.publish`."""
        self._doorway.publish(channel)
        return SharedMemoryInbox(path=self._path, key=channel.key)

    def withdraw(self, channel: Channel) -> None:
        """See `Connector.withdraw`."""
        self._doorway.withdraw(channel)

    def close(self) -> None:
        """See `Connector.close`."""
        self._doorway.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _sweep() -> None:
    """Removes folders of processes that were killed: this user's, not new, at whose socket nobody listens."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            state = folder.lstat()
            if state.st_uid != os.getuid() or time.time() - state.st_mtime < _NEW_SECONDS:
                continue
            end.settimeout(1.0)
            try:
                end.connect(str(folder / _SOCKET))
            except ConnectionRefusedError:
                shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryInbox:
    """See `Inbox`; plain data, so that it may travel."""

    path: Path
    key: str

    def open(self) -> SharedMemoryReceiver:
        """See `Inbox.open`."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.settimeout(GREETING_SECONDS)
            end.connect(str(self.path))
            end.sendall(self.key.encode())
        except OSError as error:
            end.close()
            raise ConnectionError(f"the stage before cannot be reached ({error})") from error
        return SharedMemoryReceiver(end)


class SharedMemoryReceiver:
    """See `Receiver`."""

    def __init__(self, end: socket.socket) -> None:
        self._link = SocketLink(end)

    def receive(self, timeout_seconds: float) -> Handover | None:
        """See `Receiver.receive`."""
        message = self._link.receive(timeout_seconds)
        if message is None:
            return None
        if not isinstance(message.body, Handover):
            raise ConnectionError("what came is no hand-over")
        return message.body

    def close(self) -> None:
        """See `Receiver.close`."""
        self._link.close()


class _SharedWire:
    def __init__(self, end: socket.socket) -> None:
        self._link = SocketLink(end, send_seconds=SEND_SECONDS)

    def send(self, part: Handover) -> None:
        self._link.send(StageMessage(kind=Kind.HANDOVER, body=part))

    def close(self) -> None:
        self._link.close()
