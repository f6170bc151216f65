"""The server's own figures for Prometheus; those of the engine are in its `metrics`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class Measures:
    """Counters of what the server has done since it started."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._jobs = Counter("omnireel_jobs", "jobs that ended, by how", ("status",), registry=self._registry)
        self._answers = Counter(
            "omnireel_http_answers", "answers by method and status", ("method", "status"), registry=self._registry
        )

    def watch(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """A gauge that is asked when somebody looks."""
        Gauge(f"omnireel_{name}", help_text, registry=self._registry).set_function(value)

    def answered(self, method: str, status: int) -> None:
        """An answer was given."""
        # Whoever asks makes up methods, and each would be a line for ever.
        known = method if method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS") else "other"
        self._answers.labels(known, str(status)).inc()

    def ended(self, status: str) -> None:
        """A job has ended in this state."""
        self._jobs.labels(status).inc()

    def text(self) -> str:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry).decode()
