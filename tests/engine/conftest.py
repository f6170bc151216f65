"""Engines that are closed after the test, and the toy whose steps a test holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.support.engines import HeldToy, engine_of
from tests.support.processes import threads_left

from omnireel.engine.orchestrator import Engine
from omnireel.models.toy.pipeline import ToyPipeline


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    """Makes started engines, and makes sure that none leaves a thread."""
    made: list[Engine] = []

    def make(**flags: object) -> Engine:
        made.append(engine_of(**flags))
        made[-1].start()
        return made[-1]

    yield make
    for engine in made:
        engine.close()
    assert not threads_left()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldToy]:
    """The one toy that every engine of the test gets."""
    toy = HeldToy()
    monkeypatch.setattr(ToyPipeline, "build", lambda context: toy)
    yield toy
    toy.free()
