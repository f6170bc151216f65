"""Hand-over within this process: the arrays themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnireel.engine.connectors.channel import Channel
    from omnireel.request import Handover


class MemoryConnector:
    """See `Connector`."""

    is_local = True

    def publish(self, channel: Channel) -> MemoryInbox:
        """See `Connector.publish`."""
        return MemoryInbox(channel)

    def withdraw(self, channel: Channel) -> None:
        """See `Connector.withdraw`."""
        channel.close()

    def close(self) -> None:
        """There is nothing to give back."""


class MemoryInbox:
    """See `Inbox`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def open(self) -> MemoryReceiver:
        """See `Inbox.open`."""
        return MemoryReceiver(self._channel)


class MemoryReceiver:
    """See `Receiver`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._next = 0

    def receive(self, timeout_seconds: float) -> Handover | None:
        """See `Receiver.receive`."""
        part = self._channel.part(self._next, timeout_seconds)
        self._next += part is not None
        return part

    def close(self) -> None:
        """There is nothing to give back."""
