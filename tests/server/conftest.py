"""One toy server for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.servers import Running, running


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Iterator[Running]:
    """A server of the toy with every default."""
    with running(tmp_path_factory.mktemp("toy")) as server:
        yield server
