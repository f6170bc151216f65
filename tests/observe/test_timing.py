"""Seconds are added up by stage, device work included."""

from __future__ import annotations

import pytest

from omnireel.observe.timing import StageClock


@pytest.fixture
def clock_reads(monkeypatch):
    """A clock that goes on by one second each time it is read."""
    now = iter(range(1000))
    monkeypatch.setattr("omnireel.observe.timing.time.perf_counter", lambda: float(next(now)))


@pytest.mark.usefixtures("clock_reads")
def test_a_stage_is_counted_by_name_and_again_when_it_comes_again():
    clock = StageClock()
    for name in ("encode", "denoise", "encode"):
        with clock.stage(name):
            pass
    assert clock.durations == {"encode": 2.0, "denoise": 1.0}


@pytest.mark.usefixtures("clock_reads")
def test_a_stage_that_fails_is_counted():
    clock = StageClock()
    with pytest.raises(ValueError, match="x"), clock.stage("encode"):
        raise ValueError("x")
    assert clock.durations == {"encode": 1.0}


def test_the_device_is_waited_for_at_both_ends():
    order = []
    clock = StageClock(lambda: order.append("wait"))
    with clock.stage("encode"):
        order.append("work")
    assert order == ["wait", "work", "wait"]
