"""Servers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.servers import Running, every_task, running


@pytest.fixture(scope="session")
def h3(tmp_path_factory) -> Iterator[Running]:
    """mini-h3 with every task."""
    folder = tmp_path_factory.mktemp("h3")
    with running(folder, "--served-model-name", "h3,other", model=str(every_task(folder / "checkpoint"))) as server:
        yield server


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Iterator[Running]:
    """The toy."""
    with running(tmp_path_factory.mktemp("toy")) as server:
        yield server
