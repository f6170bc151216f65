"""The command line in a test: an empty working directory, and the log put back."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from omnireel.cli.main import main


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _log_as_before():
    logger = logging.getLogger("omnireel")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers, logger.level, logger.propagate = before


@pytest.fixture
def omnireel(capsys) -> Callable[..., Ended]:
    """Runs a command line in this process."""

    def run(*argv: str) -> Ended:
        code = main(argv)
        return Ended(code, *capsys.readouterr())

    return run
