"""Connectors: ways for arrays from one stage to the next. One file each; all hand over what a `Channel` keeps.

A channel keeps every part until its request has ended, so a stage that is run again reads them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from omnireel.engine.connectors.channel import Channel
    from omnireel.request import Inbox

__all__ = ["Connector"]


class Connector(Protocol):
    """The side that hands over. Safe to use from any thread."""

    @property
    def is_local(self) -> bool:
        """Whether only this process can receive."""
        ...

    def publish(self, channel: Channel) -> Inbox:
        """Makes a channel's parts available, until `withdraw`."""
        ...

    def withdraw(self, channel: Channel) -> None:
        """Ends that; who still receives is told that the other side is gone."""
        ...

    def close(self) -> None:
        """Withdraws everything and gives back ports, files and threads; later calls do nothing."""
        ...
