"""The version of this package, as the command line tells it."""

from __future__ import annotations


def own_version() -> str:
    """The installed version; "source" when it runs without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("omnireel")
    except PackageNotFoundError:
        return "source"
