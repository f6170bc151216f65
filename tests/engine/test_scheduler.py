"""First come, first served; bounded; what is given up leaves the line at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.support.engines import Heard, ticket

from omnireel.engine import scheduler as module
from omnireel.engine import ticket as ticket_module
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


def test_a_lower_number_runs_first_and_equal_ones_in_order_of_arrival():
    line = Scheduler(max_queue=8)
    late, first, second, urgent = (ticket(priority=number) for number in (5, 0, 0, -1))
    for one in (late, first, second, urgent):
        line.submit(one)
    assert [line.next() for _ in range(4)] == [[urgent], [first], [second], [late]]


def test_one_that_is_not_ready_is_passed_but_keeps_its_place():
    line = Scheduler(max_queue=8)
    one, other, third = ticket(), ticket(), ticket()
    line.submit(one, is_ready=False)
    line.submit(other)
    line.submit(third)
    assert line.next() == [other]
    line.ready(one)
    assert line.next() == [one]


def test_one_that_ran_in_vain_runs_before_those_that_came_later():
    line = Scheduler(max_queue=1)
    one, other = ticket(), ticket()
    line.submit(one)
    assert line.next() == [one]
    line.submit(other)
    line.ended(0, one)
    line.again(one)
    assert [line.next(), line.next()] == [[one], [other]]


def test_one_that_ran_in_vain_ends_when_it_was_cancelled_or_the_line_is_closed():
    line, heard = Scheduler(max_queue=1), Heard()
    one = ticket(heard)
    one.cancel()
    line.again(one)
    assert isinstance(heard.error(), Cancelled)
    line.close("closed")
    left = Heard()
    line.again(ticket(left))
    assert left.error().message == "closed"


def test_those_of_one_key_right_behind_the_head_run_with_it():
    line = Scheduler(max_queue=9, max_batch=3)
    tickets = [ticket(height=height) for height in (16, 16, 32, 16, 32, 32, 32, 32)]
    for one in tickets:
        line.submit(one)
    a, b, c, d, e, f, g, h = tickets
    # One of another key is not passed, or it might never run.
    assert [line.next() for _ in range(4)] == [[a, b], [c], [d], [e, f, g]]
    assert line.next() == [h]


def test_each_lane_has_room_for_its_batch_beside_the_line():
    line = Scheduler(max_queue=1, max_batch=2)
    line.set_lanes(2)
    for _ in range(5):
        line.submit(ticket())
    with pytest.raises(QueueFull):
        line.submit(ticket())
    assert (len(line.next("a")), len(line.next("b")), line.waiting, line.running) == (2, 2, 1, 4)


def test_only_the_head_joins_and_only_with_its_key():
    line = Scheduler(max_queue=9, max_batch=4)
    running, same, other, behind = ticket(), ticket(), ticket(height=32), ticket()
    line.submit(running)
    assert line.next("lane") == [running]
    for one in (same, other, behind):
        line.submit(one)
    key = running.workload.batch_key
    assert line.join("lane", key, 0) == []
    assert line.join("lane", key, 3) == [same]
    assert line.join("lane", key, 2) == []
    assert line.waiting == 2


def test_nobody_joins_while_another_lane_has_nothing_to_do():
    line = Scheduler(max_queue=9, max_batch=4)
    line.set_lanes(2)
    running, late = ticket(), ticket()
    line.submit(running)
    assert line.next("busy") == [running]
    taken: list[object] = []
    idle = threading.Thread(target=lambda: taken.extend(line.next("idle")))
    idle.start()
    while not line._idle:
        time.sleep(0.001)
    with line._changed:
        # What `submit` does, seen before the idle lane wakes.
        line._insert(late)
        assert line.join("busy", running.workload.batch_key, 3) == []
    idle.join(5)
    assert taken == [late]


def test_time_that_runs_out_in_line_ends_it_although_nobody_asks():
    line, heard = Scheduler(max_queue=4), Heard()
    watch = threading.Thread(target=line.watch)
    watch.start()
    line.submit(ticket())
    line.submit(ticket(heard, timeout_seconds=0.02))
    assert isinstance(heard.error(), DeadlineExceeded)
    line.close("closed")
    watch.join(5)
    assert not watch.is_alive()


class Clock:
    """Time that passes only while somebody waits; `later` happens on the way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, line: Scheduler) -> None:
        self.now = 100.0
        self.later: list[tuple[float, Callable[[], None]]] = []
        for one in (module, ticket_module):
            monkeypatch.setattr(one, "time", type("Time", (), {"monotonic": staticmethod(lambda: self.now)}))
        monkeypatch.setattr(line._changed, "wait", self._wait)

    def _wait(self, seconds: float | None = None) -> None:
        until = None if seconds is None else self.now + seconds
        if self.later and (until is None or self.later[0][0] <= until):
            self.now, happen = self.later.pop(0)
            happen()
        else:
            assert until is not None, "nothing would ever happen"
            self.now = until


@pytest.mark.parametrize(
    ("arrivals", "lanes", "size", "seconds"),
    [
        # Nobody else comes: a fifth of the wait, or half of it with several lanes.
        ([], 1, 1, 0.02),
        ([], 2, 1, 0.05),
        # Each arrival is waited for anew, but no longer than the whole wait.
        ([0.015, 0.03], 1, 3, 0.05),
        ([0.019, 0.038, 0.057, 0.076, 0.095], 1, 6, 0.1),
        # A full batch begins at once.
        ([0.001] * 7, 1, 8, 0.001),
    ],
)
def test_a_batch_is_waited_for_while_others_keep_coming(monkeypatch, arrivals, lanes, size, seconds):
    line = Scheduler(max_queue=99, max_batch=8, batch_wait_seconds=0.1)
    line.set_lanes(lanes)
    clock = Clock(monkeypatch, line)
    clock.later = [(100.0 + after, lambda: line.submit(ticket())) for after in arrivals]
    line.submit(ticket())
    assert len(line.next()) == size
    assert clock.now - 100.0 == pytest.approx(seconds)


def test_a_batch_is_not_waited_for_when_another_key_is_behind_it(monkeypatch):
    line = Scheduler(max_queue=99, max_batch=8, batch_wait_seconds=0.1)
    clock = Clock(monkeypatch, line)
    clock.later = [(100.01, lambda: line.submit(ticket(height=32)))]
    line.submit(ticket())
    assert len(line.next()) == 1
    assert clock.now == pytest.approx(100.01)


def test_a_batch_whose_head_has_waited_long_enough_begins_at_once(monkeypatch):
    line = Scheduler(max_queue=99, max_batch=8, batch_wait_seconds=0.1)
    clock = Clock(monkeypatch, line)
    line.submit(ticket())
    clock.now += 5
    assert len(line.next()) == 1
    assert clock.now == 105.0


def test_who_comes_while_no_replica_runs_anything_is_not_told_to_come_at_once():
    line = Scheduler(max_queue=1)
    line.set_lanes(0)
    line.measured(cost=1e12, seconds=1.0)
    line.submit(ticket())
    with pytest.raises(QueueFull) as caught:
        line.submit(ticket())
    assert caught.value.details["retry_after_seconds"] == line.retry_after() == FIRST_GUESS_SECONDS
