"""Jobs run beside their giver, in order, and a few of them at most wait."""

from __future__ import annotations

import threading
import weakref
from functools import partial

from omnireel.engine.front import MAX_WAITING, Front


def wait_for(event: threading.Event) -> None:
    event.wait(5)


def test_jobs_run_in_order_on_a_thread_of_their_own():
    front = Front()
    seen: list[tuple[int, bool]] = []

    def note(number: int) -> None:
        seen.append((number, front.is_current_thread))

    front.start()
    for number in range(3):
        front.put(partial(note, number))
    front.stop()
    assert front.join(5)
    assert seen == [(0, True), (1, True), (2, True)]
    assert not front.is_current_thread


def test_who_gives_too_many_jobs_waits():
    front, leave, given = Front(), threading.Event(), threading.Event()
    front.start()

    def give():
        for _ in range(MAX_WAITING + 2):
            front.put(partial(wait_for, leave))
        given.set()

    giver = threading.Thread(target=give)
    giver.start()
    assert not given.wait(0.02)
    leave.set()
    giver.join(5)
    front.stop()
    assert front.join(5)


def test_joining_gives_up_in_time():
    front, leave = Front(), threading.Event()
    front.start()
    front.put(partial(wait_for, leave))
    front.stop()
    assert not front.join(0.01)
    leave.set()
    assert front.join(5)


def test_a_job_that_is_done_is_let_go():
    class Clip:
        pass

    front, clip = Front(), Clip()
    gone, seen = weakref.ref(clip), threading.Event()
    front.start()
    front.put(partial(lambda _: None, clip))
    del clip
    front.put(seen.set)
    assert seen.wait(5)
    assert gone() is None
    front.stop()
    assert front.join(5)


def test_a_job_that_fails_is_logged_and_the_next_one_runs(caplog):
    front, ran = Front(), threading.Event()

    def fail():
        raise ValueError("no such clip")

    front.start()
    front.put(fail)
    front.put(ran.set)
    assert ran.wait(5)
    front.stop()
    assert front.join(5)
    assert "no such clip" in caplog.text
