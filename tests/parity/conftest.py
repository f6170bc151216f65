"""One tiny checkpoint for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.tiny_h3 import write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny-h3"))
