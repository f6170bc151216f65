"""What is known of a job while it runs: steps done, the newest preview, and who listens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnireel.request import FramesU8, StepEvent

MAX_WAITING_EVENTS = 64


class Live:
    """Progress of the jobs under way; for the event loop's thread. Listeners that are too slow lose the oldest events."""

    def __init__(self) -> None:
        self._steps: dict[str, StepEvent] = {}
        self._previews: dict[str, FramesU8] = {}
        self._listeners: dict[str, list[asyncio.Queue[dict[str, Any] | None]]] = {}

    def progress(self, job_id: str) -> int:
        """Percent of the steps that are done; 100 only when the clip is there, so 99 at most."""
        step = self._steps.get(job_id)
        return 0 if step is None else min(99, 100 * step.index // step.total)

    def step(self, event: StepEvent) -> None:
        """Notes a step down and tells the listeners."""
        self._steps[event.request_id] = event
        if event.preview is not None:
            self._previews[event.request_id] = event.preview
        self._tell(event.request_id, self.facts(event.request_id))

    def facts(self, job_id: str) -> dict[str, Any]:
        """The newest step as an event: progress, step, total, seconds_left, and the preview where that step brought one."""
        step = self._steps.get(job_id)
        if step is None:
            return {
                "event": "progress", "progress": 0, "step": 0, "total": None, "step_seconds": None, "seconds_left": None,
                "preview": None,
            }  # fmt: skip
        left = step.seconds * (step.total - step.index)
        return {
            "event": "progress", "progress": self.progress(job_id), "step": step.index, "total": step.total,
            "step_seconds": step.seconds, "seconds_left": round(left, 3), "preview": step.preview,
        }  # fmt: skip

    def preview(self, job_id: str) -> FramesU8 | None:
        """The newest preview: uint8 [H,W,3]."""
        return self._previews.get(job_id)

    def end(self, job_id: str) -> None:
        """Forgets a job that has ended or waits again, and lets its listeners look at the table."""
        self._steps.pop(job_id, None)
        self._previews.pop(job_id, None)
        self._tell(job_id, None)

    def close(self) -> None:
        """Lets every listener go."""
        for job_id in list(self._listeners):
            self._tell(job_id, None)

    @contextmanager
    def listening(self, job_id: str) -> Iterator[asyncio.Queue[dict[str, Any] | None]]:
        """A queue of what happens to a job; None says that its row has changed."""
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(MAX_WAITING_EVENTS)
        self._listeners.setdefault(job_id, []).append(events)
        try:
            yield events
        finally:
            self._listeners[job_id].remove(events)
            if not self._listeners[job_id]:
                del self._listeners[job_id]

    def _tell(self, job_id: str, event: dict[str, Any] | None) -> None:
        for events in self._listeners.get(job_id, ()):
            if events.full():
                events.get_nowait()
            events.put_nowait(event)


class Speed:
    """How fast this machine works, learned from finished jobs; half the weight is on the newest."""

    FIRST_GUESS_SECONDS = 5.0

    def __init__(self) -> None:
        self._cost_per_second: float | None = None

    def measured(self, cost: float, seconds: float) -> None:
        """Learns from a finished job."""
        if cost > 0 and seconds > 0:
            speed = cost / seconds
            self._cost_per_second = speed if self._cost_per_second is None else (self._cost_per_second + speed) / 2

    def seconds_left(self, cost: float, since: float | None) -> float:
        """Until a job that began at that `time.time()` should be done; never less than a second."""
        if self._cost_per_second is None:
            return self.FIRST_GUESS_SECONDS
        spent = 0.0 if since is None else time.time() - since
        return max(1.0, cost / self._cost_per_second - spent)
