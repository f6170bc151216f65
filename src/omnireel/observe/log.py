"""Logging: to stderr, each line with the request and stage it belongs to.

Who calls need not pass them on: they travel in a context variable. Prompts, media and tokens are logged at DEBUG at most.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_scope: ContextVar[str] = ContextVar("omnireel_request_scope", default="")

_FORMAT = "%(asctime)s %(levelname)s %(name)s%(scope)s: %(message)s"


class ScopeFilter(logging.Filter):
    """Adds `scope` to each record: " [request stage]", or nothing outside of a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps every record."""
        scope = _scope.get()
        record.scope = f" [{scope}]" if scope else ""
        return True


@contextmanager
def request_scope(request_id: str, stage: str = "") -> Iterator[None]:
    """Within this block log lines of this thread carry the request's id and stage."""
    token = _scope.set(f"{request_id} {stage}".strip())
    try:
        yield
    finally:
        _scope.reset(token)


def configure(level: str) -> None:
    """Sends omnireel's log to stderr from this level up ("debug", "info", "warning", "error"); for programs, not libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.addFilter(ScopeFilter())
    logger = logging.getLogger("omnireel")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
