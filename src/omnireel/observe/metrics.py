"""Figures of a running engine in the words of Prometheus. No server is needed: `text` is what one would serve.

Every name starts with `omnireel_`. Prompts, ids and paths are never part of a figure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What `Metrics.text` is, for the header of an answer."""

_STEP_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)
_STAGE_SECONDS = (0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 3600)
_SPEEDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 100)
"""Bounds of the histograms; a request takes from milliseconds (toy) to an hour (the largest clip on one card)."""


class Metrics:
    """The figures of one engine. Safe to use from any thread; engines of one process do not share any."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "omnireel_requests", "requests that ended, by how (ok, or the error's code)", ("status", "task"),
            registry=registry,
        )  # fmt: skip
        self._waiting = Gauge("omnireel_requests_waiting", "requests in the queue", registry=registry)
        self._running = Gauge("omnireel_requests_running", "requests that run", registry=registry)
        self._request_seconds = Histogram(
            "omnireel_request_seconds", "seconds from submission to the end", ("task",),
            buckets=_STAGE_SECONDS, registry=registry,
        )  # fmt: skip
        self._stage_seconds = Histogram(
            "omnireel_stage_seconds", "seconds of a request in a stage", ("stage",),
            buckets=_STAGE_SECONDS, registry=registry,
        )  # fmt: skip
        self._step_seconds = Histogram(
            "omnireel_step_seconds", "seconds of one evaluation of the model", buckets=_STEP_SECONDS, registry=registry
        )
        self._output_seconds = Counter("omnireel_output_seconds", "seconds of clips that were made", registry=registry)
        self._speed = Histogram(
            "omnireel_output_seconds_per_second", "seconds of clip made in a second of work", buckets=_SPEEDS,
            registry=registry,
        )  # fmt: skip
        self._memory = Gauge(
            "omnireel_device_memory_bytes", "memory of a device: free, or most in use so far (peak)",
            ("device", "kind"), registry=registry,
        )  # fmt: skip
        self._restarts = Counter(
            "omnireel_worker_restarts", "workers that were started again", ("stage",), registry=registry
        )
        self._events = Counter(
            "omnireel_events", "things worth counting, such as prompt_cache_hit and lora_load", ("event",),
            registry=registry,
        )  # fmt: skip
        self._peaks: dict[str, float] = {}
        self._lock = threading.Lock()

    def watch(self, *, waiting: Callable[[], float], running: Callable[[], float]) -> None:
        """Where the length of the queue and of what runs are read when somebody asks."""
        self._waiting.set_function(waiting)
        self._running.set_function(running)

    def watch_memory(self, device: str, free_bytes: Callable[[], float]) -> None:
        """Where a device's free memory is read when somebody asks."""
        self._memory.labels(device, "free").set_function(free_bytes)

    def step(self, seconds: float) -> None:
        """One evaluation of the model is done."""
        self._step_seconds.observe(seconds)

    def refused(self, *, status: str, task: str) -> None:
        """A request was turned away before it waited. status: the code of its error."""
        self._requests.labels(status, task).inc()

    def ended(self, *, status: str, task: str, seconds: float) -> None:
        """A request has ended. status: "ok" or the code of its error."""
        self._requests.labels(status, task).inc()
        self._request_seconds.labels(task).observe(seconds)

    def made(self, durations: Mapping[str, float], *, clip_seconds: float, counts: Mapping[str, int]) -> None:
        """What a request that went well took, by stage; `counts` are those of its run."""
        for stage, seconds in durations.items():
            self._stage_seconds.labels(stage).observe(seconds)
        self._output_seconds.inc(clip_seconds)
        work = sum(seconds for stage, seconds in durations.items() if stage != "queue")
        if work > 0:
            self._speed.observe(clip_seconds / work)
        self.count(counts)

    def count(self, counts: Mapping[str, int]) -> None:
        """Things worth counting, by name."""
        for name, times in counts.items():
            self._events.labels(name).inc(times)

    def peak(self, device: str, peak_bytes: float) -> None:
        """Most memory of a run; the figure keeps the most of all runs."""
        with self._lock:
            self._peaks[device] = max(self._peaks.get(device, 0.0), peak_bytes)
            self._memory.labels(device, "peak").set(self._peaks[device])

    def restarted(self, stage: str) -> None:
        """A worker of a stage was started again."""
        self._restarts.labels(stage).inc()

    def text(self) -> str:
        """All figures as they are now, in Prometheus' text format (see CONTENT_TYPE)."""
        return generate_latest(self._registry).decode()


class PartMetrics(Metrics):
    """The figures of an engine that is part of another: what is of devices and workers is the other's too, and requests are
    counted there, once.
    """

    def __init__(self, whole: Metrics) -> None:
        self._whole = whole

    def watch(self, *, waiting: Callable[[], float], running: Callable[[], float]) -> None:
        """The other knows how many requests there are."""

    def watch_memory(self, device: str, free_bytes: Callable[[], float]) -> None:
        """See `Metrics.watch_memory`."""
        self._whole.watch_memory(device, free_bytes)

    def step(self, seconds: float) -> None:
        """The other hears of each step."""

    def refused(self, *, status: str, task: str) -> None:
        """The other tells who is refused."""

    def ended(self, *, status: str, task: str, seconds: float) -> None:
        """The other's requests end when all of their parts have."""

    def made(self, durations: Mapping[str, float], *, clip_seconds: float, counts: Mapping[str, int]) -> None:
        """Of this only the counts are not told with a result."""
        self._whole.count(counts)

    def peak(self, device: str, peak_bytes: float) -> None:
        """See `Metrics.peak`."""
        self._whole.peak(device, peak_bytes)

    def restarted(self, stage: str) -> None:
        """See `Metrics.restarted`."""
        self._whole.restarted(stage)

    def text(self) -> str:
        """See `Metrics.text`: those of the whole."""
        return self._whole.text()
