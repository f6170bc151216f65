"""Logging: to stderr, each line with the request, stage and rank that it belongs to, as text or as JSON.

Who calls need not pass them on: request and stage travel in a context variable, the rank belongs to the process. Prompts,
media and tokens are logged at DEBUG at most.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s%(scope)s: %(message)s"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a line is about; "" for what is not known."""

    request_id: str = ""
    stage: str = ""


_NOWHERE = Scope()
_scope: ContextVar[Scope] = ContextVar("omnireel_scope", default=_NOWHERE)
_pipeline_stage: ContextVar[str] = ContextVar("omnireel_pipeline_stage", default="")


class ScopeFilter(logging.Filter):
    """Adds to each record `request_id`, `stage`, `rank` (None for a process that is no worker), and all of them as `scope`.

    Args:
        rank: of the process among the workers of its stage.
        stage: of the process, in a pipeline of several, else that of the thread; a scope's own stage stands behind it.
    """

    def __init__(self, *, rank: int | None = None, stage: str = "") -> None:
        super().__init__()
        self._rank = rank
        self._stage = stage

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps every record."""
        scope = _scope.get()
        stage = ".".join(word for word in (self._stage or _pipeline_stage.get(), scope.stage) if word)
        rank = "" if self._rank is None else f"rank {self._rank}"
        words = " ".join(word for word in (scope.request_id, stage, rank) if word)
        record.request_id, record.stage, record.rank = scope.request_id, stage, self._rank
        record.scope = f" [{words}]" if words else ""
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC, ISO 8601), level, logger, message; request_id, stage, rank and error where there
    are any, and under `fields` what the caller passed as `extra={"fields": {...}}`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = {name: record.__dict__.get(name) for name in ("request_id", "stage", "rank", "fields")}
        line |= {name: value for name, value in given.items() if value not in (None, "")}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


@contextmanager
def request_scope(request_id: str, stage: str = "") -> Iterator[None]:
    """Within this block log lines of this thread carry the request's id and stage."""
    token = _scope.set(Scope(request_id, stage))
    try:
        yield
    finally:
        _scope.reset(token)


def name_stage(stage: str) -> None:
    """Log lines of this thread are of this stage from now on; "" for a model that is alone."""
    _pipeline_stage.set(stage)


def configure(level: str, form: str = "text", *, rank: int | None = None, stage: str = "") -> None:
    """Sends omnireel's log to stderr; for programs, not libraries.

    Args:
        level: what is logged from here up: "debug", "info", "warning" or "error".
        form: one of FORMATS.
        rank: of this process among the workers of its stage; None for one that is no worker.
        stage: of this process.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_TEXT))
    handler.addFilter(ScopeFilter(rank=rank, stage=stage))
    logger = logging.getLogger("omnireel")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
