"""The process environment; the one place that reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping


def read(name: str, default: str | None = None) -> str | None:
    """One variable; `default` when it is not set or empty."""
    return os.environ.get(name) or default


def environment() -> Mapping[str, str]:
    """All variables, as they are now."""
    return dict(os.environ)
