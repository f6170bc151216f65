"""The model in this process."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from tests.support.engines import TakingFeed, ticket

from omnireel.config import resolve
from omnireel.engine.build import worker_specs
from omnireel.engine.executors.inline import InlineExecutor
from omnireel.errors import BadCheckpoint, EngineError, OutOfMemory
from omnireel.models.toy.pipeline import ToyPipeline
from omnireel.platforms.cpu import Cpu


def executor():
    return InlineExecutor(worker_specs(resolve({"model": "toy", "device": "cpu"}, {}))[0])


def ran(one):
    feed, asked = TakingFeed(), ticket()
    one.execute([asked], feed)
    return feed.outcome(asked)


def test_it_runs_a_request_once_started():
    one = executor()
    with pytest.raises(EngineError, match="not started"):
        ran(one)
    one.start()
    assert ran(one).output.frames is not None
    assert one.weights_digest == ""


def test_its_device_is_the_current_one_while_it_loads_and_runs(monkeypatch):
    seen: list[object] = []

    @contextmanager
    def use(self, index=0):
        seen.append(index)
        yield
        seen.append("back")

    build, step = ToyPipeline.build, ToyPipeline.step

    def noted_build(context):
        seen.append("loads")
        return build(context)

    def noted_step(self, state):
        seen.append("steps")
        return step(self, state)

    monkeypatch.setattr(Cpu, "use", use)
    monkeypatch.setattr(ToyPipeline, "build", noted_build)
    monkeypatch.setattr(ToyPipeline, "step", noted_step)
    one = executor()
    one.start()
    ran(one)
    assert seen == [0, "loads", "back", 0, *["steps"] * 4, "back"]


def test_it_lets_the_model_go():
    one = executor()
    one.start()
    one.close()
    one.close()
    with pytest.raises(EngineError, match="not started"):
        ran(one)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(MemoryError(), OutOfMemory), (RuntimeError("a bug"), RuntimeError), (BadCheckpoint("a", "b"), BadCheckpoint)],
)
def test_what_goes_wrong_while_loading_is_told(monkeypatch, raised, kind):
    def load(context):
        raise raised

    monkeypatch.setattr(ToyPipeline, "build", load)
    with pytest.raises(kind):
        executor().start()


def test_memory_that_ran_out_while_loading_hints_at_the_model(monkeypatch):
    def load(context):
        raise MemoryError

    monkeypatch.setattr(ToyPipeline, "build", load)
    with pytest.raises(OutOfMemory, match="loading the model") as raised:
        executor().start()
    assert "--dtype" in raised.value.hint
