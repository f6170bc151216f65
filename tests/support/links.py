"""A worker in a thread of this process, for tests of what drives one."""

from __future__ import annotations

import socket
import threading

from omnireel.engine.link import SocketLink
from omnireel.engine.message import Kind, StageMessage
from omnireel.engine.worker import Worker


class ThreadLink:
    """See `Link`: to a worker that is a thread. It cannot be killed, and ends after a step."""

    pids: tuple[int, ...] = ()

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._theirs = SocketLink(ours, send_seconds=5), SocketLink(theirs, send_seconds=5)
        self._left = threading.Event()
        self._thread = threading.Thread(target=Worker(self._theirs, lambda code: self._left.set()).serve, daemon=True)
        self._thread.start()
        self.sent: list[StageMessage] = []

    def send(self, message: StageMessage) -> None:
        """See `Wire.send`."""
        self.sent.append(message)
        self._socket.send(message)

    def receive(self, timeout_seconds: float) -> StageMessage | None:
        """See `Wire.receive`."""
        return self._socket.receive(timeout_seconds)

    def kill(self) -> None:
        """See `Link.kill`: asks for what only a process can be made to do."""
        self._socket.send(StageMessage(kind=Kind.CLOSE))

    def close(self, timeout_seconds: float) -> bool:
        """See `Link.close`."""
        self._thread.join(timeout_seconds)
        self._socket.close()
        self._left.wait(timeout_seconds)
        self._theirs.close()
        return True

    def epitaph(self) -> tuple[str, tuple[str, ...]]:
        """See `Link.epitaph`."""
        return "ended", ()
