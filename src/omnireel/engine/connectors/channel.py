"""What one request hands from one stage to the next: parts in order, kept until it has ended."""

from __future__ import annotations

import secrets
import threading

from omnireel.request import Handover


class Channel:
    """Parts of one hand-over. Safe to use from any thread.

    key: what a receiver in another process names it by; whoever knows it may read, so it cannot be guessed.
    """

    def __init__(self) -> None:
        self.key = secrets.token_hex(16)
        self._parts: list[Handover] = []
        self._changed = threading.Condition()
        self._is_closed = False

    def send(self, part: Handover) -> None:
        """Adds a part; does not wait for anybody."""
        with self._changed:
            self._parts.append(part)
            self._changed.notify_all()

    def part(self, index: int, timeout_seconds: float) -> Handover | None:
        """The part of that number; None when it did not come in that time.

        Raises:
            ConnectionError: the channel is closed, and will not have it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or index < len(self._parts), timeout_seconds)
            if index < len(self._parts):
                return self._parts[index]
            if self._is_closed:
                raise ConnectionError("the stage before gives no more")
            return None

    def close(self) -> None:
        """Lets all parts go; who waits is told."""
        with self._changed:
            self._is_closed = True
            self._parts = []
            self._changed.notify_all()
