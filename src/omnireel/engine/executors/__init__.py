"""Executors: where a stage's model lives and runs. One file each; all are driven through `Executor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from omnireel.engine.runner import RunReport
    from omnireel.engine.ticket import Ticket

__all__ = ["Executor"]


class Executor(Protocol):
    """One model on its devices. Called by one thread at a time."""

    def start(self) -> None:
        """Loads the model.

        Raises:
            SetupError: it cannot be loaded here.
        """
        ...

    @property
    def weights_digest(self) -> str:
        """See `Pipeline.weights_digest`; known once started."""
        ...

    def execute(self, ticket: Ticket, between: Callable[[], None]) -> RunReport:
        """Runs one request to its end; see `Runner.run`."""
        ...

    def close(self) -> None:
        """Gives back what it holds; later calls do nothing."""
        ...
