"""First come, first served; bounded; what is given up leaves the line at once."""

from __future__ import annotations

import threading
import time

import pytest
from tests.support.engines import Heard, ticket

from omnireel.engine import scheduler as module
from omnireel.engine.scheduler import FIRST_GUESS_SECONDS, Scheduler
from omnireel.errors import Cancelled, DeadlineExceeded, EngineError, QueueFull


def test_tickets_come_out_as_they_went_in():
    line = Scheduler(max_queue=3)
    tickets = [ticket() for _ in range(4)]
    for one in tickets:
        line.submit(one)
    assert [line.next() for _ in tickets] == [[one] for one in tickets]


def test_the_one_that_runs_does_not_wait():
    line = Scheduler(max_queue=1)
    line.submit(ticket())
    line.submit(ticket())
    with pytest.raises(QueueFull):
        line.submit(ticket())
    line.next()
    with pytest.raises(QueueFull):
        line.submit(ticket())
    line.next()
    line.submit(ticket())
    assert line.waiting == 1


def test_a_full_line_guesses_when_to_come_back():
    assert full(Scheduler(max_queue=1)) == FIRST_GUESS_SECONDS


def test_a_full_line_tells_when_the_running_one_should_be_done(monkeypatch):
    now = 100.0
    monkeypatch.setattr(module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now)}))
    line = Scheduler(max_queue=1)
    running = ticket()
    line.measured(running.workload.cost, 30.0)
    line.submit(running)
    line.next()
    now = 110.0
    assert full(line) == pytest.approx(20.0)
    now = 1000.0
    assert full(line) == 1.0


def submit_many(line: Scheduler) -> None:
    for _ in range(3):
        line.submit(ticket())


def full(line: Scheduler) -> float:
    """Fills the line; the retry time that it names then."""
    with pytest.raises(QueueFull) as raised:
        submit_many(line)
    return float(raised.value.details["retry_after_seconds"])


def test_cancelling_in_line_ends_it_at_once_and_frees_the_place():
    line, heard = Scheduler(max_queue=0), Heard()
    one = ticket(heard)
    line.submit(one)
    one.cancel()
    assert isinstance(heard.error(), Cancelled)
    line.submit(ticket())
    assert line.waiting == 1


def test_time_that_runs_out_in_line_ends_it():
    line, heard, other = Scheduler(max_queue=2), Heard(), ticket()
    line.submit(ticket(heard, timeout_seconds=0.01))
    line.submit(other)
    time.sleep(0.02)
    assert line.next() == [other]
    assert isinstance(heard.error(), DeadlineExceeded)


def test_next_waits_for_a_ticket():
    line, one = Scheduler(max_queue=1), ticket()
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(line.next()))
    thread.start()
    line.submit(one)
    thread.join(5)
    assert found == [[one]]


def test_closing_wakes_who_waits_and_hands_over_what_is_left():
    line, one = Scheduler(max_queue=1), ticket()
    line.submit(one)
    assert line.close("closed for the night") == [one]
    assert line.next() == []
    with pytest.raises(EngineError, match="closed for the night"):
        line.submit(ticket())


def test_the_first_reason_for_closing_stays():
    line = Scheduler(max_queue=1)
    line.close("it died")
    line.close("it is closed")
    with pytest.raises(EngineError, match="it died"):
        line.submit(ticket())


def test_a_listener_may_submit_when_its_request_ends_in_line():
    line, again = Scheduler(max_queue=1), ticket()
    one = ticket(lambda event: line.submit(again))
    line.submit(one)
    one.cancel()
    assert line.next() == [again]
