"""Executors: where a stage's model lives and runs. One file each; all are driven through `Executor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from omnireel.errors import OmniReelError

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from omnireel.engine.runner import RunReport
    from omnireel.engine.ticket import Ticket
    from omnireel.observe.trace import TraceOrder

    Outcome: TypeAlias = "RunReport | OmniReelError"

__all__ = ["Executor", "Feed"]


class Feed(Protocol):
    """What an executor asks of who drives it while it runs requests."""

    def pause(self) -> None:
        """Called between any two steps."""
        ...

    def more(self, key: tuple[Any, ...], room: int) -> Sequence[Ticket]:
        """Requests of this batch key that are to be stepped with those that run, at most `room`; usually none."""
        ...

    def done(self, ticket: Ticket, outcome: Outcome) -> None:
        """Takes what a request came to; called once for each that `execute` was given or that joined."""
        ...


class Executor(Protocol):
    """One replica of a model on its devices. Called by one thread at a time, but for `state`."""

    def start(self) -> None:
        """Loads the model; also again after `execute` or `check` raised.

        Raises:
            SetupError: it cannot be loaded here.
            OutOfMemory, WorkerDied: it could not be loaded now.
        """
        ...

    @property
    def weights_digest(self) -> str:
        """See `Pipeline.weights_digest`; known once started."""
        ...

    @property
    def is_here(self) -> bool:
        """Whether it computes in this process, which may then ask its device without taking memory of it."""
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that compute, where they are of this machine and alive; that of the first rank first."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What of the engine a recipe remembers, see `engine_facts`. Called on the thread that calls `execute`."""
        ...

    def execute(self, tickets: Sequence[Ticket], feed: Feed) -> None:
        """Runs requests of one batch key together to their ends, each of which is told to `feed`.

        Raises:
            WorkerDied: the model is gone; requests that were not told of are as if they had not run.
        """
        ...

    def check(self, waited_seconds: float) -> None:
        """Looks whether the model is still there; called several times a second while nothing runs, with the time since.

        Raises:
            WorkerDied: it is not.
        """
        ...

    def profile(self, order: TraceOrder | None) -> Future[tuple[Path, ...]]:
        """Begins a trace of whoever computes, or ends it; for any thread, also while something runs.

        Returns:
            Comes when that is done: with the files at the end of a trace; or with an OmniReelError.
        """
        ...

    def kill(self) -> None:
        """Ends what runs at once, where it can be; for any thread. The executor may then only be closed."""
        ...

    def close(self) -> None:
        """Gives back what it holds; later calls do nothing."""
        ...
