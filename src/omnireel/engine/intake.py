"""What a run takes from the stage before it, part after part, while it may still be cancelled or run out of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from omnireel.errors import ConnectorLost

if TYPE_CHECKING:
    import numpy.typing as npt

    from omnireel.request import Inbox, Receiver

_TICK_SECONDS = 0.05
"""How long a cancel may go unheard while nothing comes."""


class Intake:
    """The parts that arrive at an inbox.

    Args:
        pause: called while nothing comes; what it raises ends the wait.
    """

    def __init__(self, inbox: Inbox, pause: Callable[[], None]) -> None:
        self._inbox = inbox
        self._pause = pause
        self._receiver: Receiver | None = None
        self._is_done = False

    def next(self) -> Mapping[str, npt.NDArray[Any]] | None:
        """The next part; None when there are no more.

        Raises:
            ConnectorLost: the stage before cannot be reached any more.
            OmniReelError: what `pause` raises.
        """
        while not self._is_done:
            self._pause()
            try:
                if self._receiver is None:
                    self._receiver = self._inbox.open()
                part = self._receiver.receive(_TICK_SECONDS)
            except ConnectionError as error:
                raise ConnectorLost(str(error)) from error
            if part is None:
                continue
            if part.is_last:
                self.close()
            if part.tensors:
                return part.tensors
        return None

    def whole(self) -> dict[str, npt.NDArray[Any]]:
        """All parts at once, for a model that takes its input as a whole; a later array of a name wins. See `next`."""
        found: dict[str, npt.NDArray[Any]] = {}
        while (part := self.next()) is not None:
            found |= part
        return found

    def close(self) -> None:
        """Takes nothing more."""
        self._is_done = True
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()
