"""Engines on the toy, listeners that remember, and a toy whose steps a test lets happen one by one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from omnireel.config import resolve
from omnireel.engine.orchestrator import Engine
from omnireel.engine.result import GenerationResult
from omnireel.engine.runner import RunReport
from omnireel.engine.ticket import Ticket
from omnireel.errors import OmniReelError
from omnireel.models.discover import admit, find_checkpoint
from omnireel.models.toy.pipeline import ToyPipeline, ToyState
from omnireel.request import DiffusionSamplingParams, GenerationRequest, OutputSpec, StepEvent

PATIENCE_SECONDS = 10.0


class Heard:
    """A listener: keeps every event, and lets a test wait for the last one. `ticket` is for who submits to keep."""

    ticket: Ticket

    def __init__(self) -> None:
        self.events: list[StepEvent | GenerationResult | OmniReelError] = []
        self._last: queue.SimpleQueue[GenerationResult | OmniReelError] = queue.SimpleQueue()

    def __call__(self, event: StepEvent | GenerationResult | OmniReelError) -> None:
        self.events.append(event)
        if not isinstance(event, StepEvent):
            self._last.put(event)

    @property
    def steps(self) -> list[StepEvent]:
        """The step events so far."""
        return [event for event in self.events if isinstance(event, StepEvent)]

    @property
    def finals(self) -> list[GenerationResult | OmniReelError]:
        """What ended the request: one entry, if all is well."""
        return [event for event in self.events if not isinstance(event, StepEvent)]

    def last(self) -> GenerationResult | OmniReelError:
        """Waits for the last event."""
        return self._last.get(timeout=PATIENCE_SECONDS)

    def result(self) -> GenerationResult:
        """Waits for a result."""
        last = self.last()
        assert isinstance(last, GenerationResult), last
        return last

    def error(self) -> OmniReelError:
        """Waits for an error."""
        last = self.last()
        assert isinstance(last, OmniReelError), last
        return last


class HeldToy(ToyPipeline):
    """A toy that says when a step begins and takes it when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._leave = threading.Semaphore(0)
        self._is_free = False

    def step(self, state: ToyState) -> ToyState:
        """Waits for `let`."""
        self.begun.put(state.workload.prompt)
        if not self._is_free:
            assert self._leave.acquire(timeout=PATIENCE_SECONDS)
        return super().step(state)

    def until_step(self) -> str:
        """Waits until a step has begun; gives the prompt of its request."""
        return self.begun.get(timeout=PATIENCE_SECONDS)

    def let(self, steps: int = 1) -> None:
        """Lets that many steps happen."""
        self._leave.release(steps)

    def free(self) -> None:
        """Lets all steps happen from now on."""
        self._is_free = True
        self._leave.release(1000)


class TakingFeed:
    """A feed that keeps what requests came to. `later` are requests that join when they are asked for."""

    def __init__(self, between: Callable[[], None] = lambda: None, later: Sequence[Ticket] = ()) -> None:
        self.outcomes: dict[str, RunReport | OmniReelError] = {}
        self.rooms: list[int] = []
        self._between = between
        self._later = list(later)

    def pause(self) -> None:
        """Calls what was given."""
        self._between()

    def more(self, key: tuple[Any, ...], room: int) -> list[Ticket]:
        """Hands over who waits, as far as there is room."""
        self.rooms.append(room)
        joined, self._later = self._later[:room], self._later[room:]
        return joined

    def done(self, ticket: Ticket, outcome: RunReport | OmniReelError) -> None:
        """Keeps it."""
        assert ticket.request_id not in self.outcomes
        self.outcomes[ticket.request_id] = outcome

    def outcome(self, ticket: Ticket) -> RunReport:
        """The report of a request; its error is raised."""
        outcome = self.outcomes[ticket.request_id]
        if isinstance(outcome, OmniReelError):
            raise outcome
        return outcome


def engine_of(**flags: Any) -> Engine:
    """An engine on the toy that is not started; on the processor, where its memory is."""
    return Engine(resolve({"model": "toy", "device": "cpu", **flags}, {}))


def request(prompt: str = "a kite", *, output: OutputSpec | None = None, **values: Any) -> GenerationRequest:
    """A small request. `timeout_seconds`, `request_id` and `priority` belong to it, other values to its sampling."""
    own = {name: values.pop(name) for name in ("timeout_seconds", "request_id", "priority") if name in values}
    sampling = DiffusionSamplingParams(**{"height": 16, "width": 16, "num_frames": 3, "seed": 1, **values})
    return GenerationRequest(prompt=prompt, sampling=sampling, output=output or OutputSpec(), **own)


def ticket(
    on_event: Callable[[Any], None] | None = None,
    *,
    timeout_seconds: float | None = None,
    priority: int = 0,
    **values: Any,
) -> Ticket:
    """A ticket of a small request."""
    workload = admit(request(**values), find_checkpoint("toy"))
    return Ticket(workload, on_event or Heard(), timeout_seconds=timeout_seconds, priority=priority)
