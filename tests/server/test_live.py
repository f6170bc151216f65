"""What is known of a job while it runs."""

import asyncio
import time

import numpy as np
import pytest

from omnireel.request import StepEvent
from omnireel.server.live import MAX_WAITING_EVENTS, Live, Speed


def step(index, total=4, preview=None):
    return StepEvent(request_id="a", index=index, total=total, seconds=0.5, preview=preview)


def test_progress_is_of_real_steps_and_100_is_for_the_clip():
    live = Live()
    assert live.progress("a") == 0
    live.step(step(1))
    assert live.progress("a") == 25
    live.step(step(4))
    assert live.progress("a") == 99
    live.end("a")
    assert live.progress("a") == 0


def test_the_newest_preview_is_kept():
    live = Live()
    frame = np.zeros((2, 2, 3), np.uint8)
    live.step(step(1, preview=frame))
    live.step(step(2))
    assert live.preview("a") is frame
    assert live.facts("a")["preview"] is None
    assert live.facts("a")["seconds_left"] == 1.0


def test_listeners_hear_steps_and_the_end_in_order():
    live = Live()
    with live.listening("a") as one, live.listening("a") as two:
        live.step(step(1))
        live.end("a")
        for events in (one, two):
            first = events.get_nowait()
            assert first is not None
            assert first["step"] == 1
            assert events.get_nowait() is None
    assert not live._listeners


def test_a_slow_listener_loses_the_oldest_never_the_end():
    live = Live()
    with live.listening("a") as events:
        for index in range(1, MAX_WAITING_EVENTS + 10):
            live.step(step(index, total=999))
        live.end("a")
        heard = [events.get_nowait() for _ in range(MAX_WAITING_EVENTS)]
        assert heard[-1] is None
        with pytest.raises(asyncio.QueueEmpty):
            events.get_nowait()


def test_speed_is_learned_and_never_promises_less_than_a_second():
    speed = Speed()
    assert speed.seconds_left(10.0, None) == Speed.FIRST_GUESS_SECONDS
    speed.measured(100.0, 10.0)
    assert speed.seconds_left(50.0, None) == 5.0
    speed.measured(300.0, 10.0)
    assert speed.seconds_left(40.0, None) == 2.0
    assert speed.seconds_left(40.0, time.time() - 60) == 1.0
