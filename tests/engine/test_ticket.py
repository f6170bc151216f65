"""A ticket gives its events in order, one last event and nothing after it."""

from __future__ import annotations

import logging
import threading

import pytest
from tests.support.engines import Heard, ticket

from omnireel.errors import Cancelled, DeadlineExceeded, EngineError
from omnireel.request import StepEvent

STEP = StepEvent(request_id="r", index=1, total=4, seconds=0.1)


def test_the_last_event_is_given_once():
    heard = Heard()
    one = ticket(heard)
    first = EngineError("first")
    assert [one.finish(first), one.finish(EngineError("second"))] == [True, False]
    assert heard.events == [first]
    assert one.is_finished


def test_nothing_follows_the_last_event():
    heard = Heard()
    one = ticket(heard)
    one.finish(EngineError("over"))
    one.emit(STEP)
    assert heard.steps == []


def test_a_listener_that_fails_is_logged_and_changes_nothing(caplog):
    def listen(event):
        raise ValueError("listener")

    one = ticket(listen)
    one.emit(STEP)
    assert one.finish(EngineError("over"))
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert one.request_id in caplog.text


def test_a_fresh_ticket_has_no_problem():
    one = ticket(timeout_seconds=60)
    one.check("before anything")
    assert one.problem("before anything") is None


def test_time_that_ran_out_is_told_with_how_much_it_was():
    with pytest.raises(DeadlineExceeded, match=r"past its 1e-09 s \(before encode\)"):
        ticket(timeout_seconds=1e-9).check("before encode")


def test_cancelling_goes_before_the_deadline():
    one = ticket(timeout_seconds=1e-9)
    one.cancel()
    one.cancel()
    with pytest.raises(Cancelled, match="before encode"):
        one.check("before encode")


def test_a_listener_may_end_its_own_request_while_it_listens():
    heard = Heard()

    def listen(event):
        heard(event)
        if isinstance(event, StepEvent):
            one.finish(Cancelled(one.request_id, "by its listener"))

    one = ticket(listen)
    one.emit(STEP)
    one.emit(STEP)
    assert [type(event) for event in heard.events] == [StepEvent, Cancelled]


def test_a_listener_that_wants_to_end_its_thread_does_not(caplog):
    def listen(event):
        raise SystemExit(3)

    one = ticket(listen)
    one.emit(STEP)
    assert one.finish(Cancelled(one.request_id, "here"))
    assert "the listener of request" in caplog.text


def test_who_ends_a_request_does_not_wait_for_ever_and_its_listener_is_told_afterwards(monkeypatch):
    monkeypatch.setattr("omnireel.engine.ticket.BUSY_SECONDS", 0.1)
    heard, busy, leave = Heard(), threading.Event(), threading.Event()

    def listen(event):
        heard(event)
        busy.set()
        assert leave.wait(10)

    one = ticket(listen)
    emitting = threading.Thread(target=one.emit, args=[STEP])
    emitting.start()
    assert busy.wait(10)
    ends = [Cancelled(one.request_id, where) for where in ("first", "second")]
    assert [one.finish(end) for end in ends] == [True, True]
    assert not heard.finals
    leave.set()
    emitting.join(10)
    assert heard.finals == ends[:1]
    assert not one.finish(Cancelled(one.request_id, "third"))
