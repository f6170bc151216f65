"""A lane: what becomes of requests and of a replica that dies, without a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.support.engines import Heard, ticket

from omnireel.config import resolve
from omnireel.engine import replicas
from omnireel.engine.build import worker_specs
from omnireel.engine.executors.inline import InlineExecutor
from omnireel.engine.replicas import Lane, LaneState, Recovery
from omnireel.engine.runner import RunReport
from omnireel.engine.scheduler import Scheduler
from omnireel.errors import EngineError, OmniReelError, OutOfMemory, WorkerDied


class Mortal(InlineExecutor):
    """Dies as often as it is told to, before or after a request has begun; `starts` are errors of its next starts."""

    def __init__(self, *, deaths: int = 0, has_begun: bool = True, idle_deaths: int = 0) -> None:
        super().__init__(worker_specs(resolve({"model": "toy", "device": "cpu"}, {}))[0])
        self.deaths, self.has_begun, self.idle_deaths = deaths, has_begun, idle_deaths
        self.starts: list[OmniReelError] = []
        self.runs = 0

    def start(self) -> None:
        if self.starts:
            raise self.starts.pop(0)
        super().start()

    def execute(self, tickets, feed) -> None:
        self.runs += 1
        if self.deaths:
            self.deaths -= 1
            for one in tickets:
                one.has_begun = self.has_begun
            raise WorkerDied("0", "died", ["its last line"])
        super().execute(tickets, feed)

    def check(self, waited_seconds: float) -> None:
        if self.idle_deaths:
            self.idle_deaths -= 1
            raise WorkerDied("0", "died")


class Work:
    """One lane on its line, and what came of it."""

    def __init__(self, executor: Mortal, recovery: Recovery) -> None:
        self.line = Scheduler(max_queue=16)
        self.restarts = 0
        self.reasons: list[str] = []
        self.gone = threading.Event()
        executor.start()
        self.lane = Lane(
            executor._spec,
            executor,
            self.line,
            recovery,
            finished=self._finished,
            gone=self._gone,
            restarted=self._again,
        )
        self.lane.start()

    def ask(self) -> Heard:
        heard = Heard()
        self.line.submit(ticket(heard))
        return heard

    def close(self) -> None:
        self.line.close("closed")
        self.lane.close()
        assert self.gone.wait(10)
        assert self.lane.join(10)

    def _finished(self, one, outcome: RunReport | OmniReelError, lane) -> None:
        assert lane is self.lane
        one.finish(outcome)

    def _again(self) -> None:
        self.restarts += 1

    def _gone(self, lane, reason: str) -> None:
        self.reasons.append(reason)
        self.gone.set()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Work]]:
    monkeypatch.setattr(replicas, "FIRST_BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(replicas, "TEND_SECONDS", 0.01)
    made: list[Work] = []

    def make(executor: Mortal, **recovery: int) -> Work:
        made.append(Work(executor, replace(Recovery(), **recovery)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_what_ran_when_its_replica_died_fails_and_the_next_one_runs(work):
    one = work(Mortal(deaths=1))
    error = one.ask().last()
    assert isinstance(error, WorkerDied)
    assert "its last line" in error.message
    assert isinstance(one.ask().last(), RunReport)
    assert one.restarts == 1
    assert one.lane.health.state is LaneState.READY
    assert "died" in one.lane.health.problem


def test_what_ran_is_run_once_more_by_setting(work):
    executor = Mortal(deaths=1)
    assert isinstance(work(executor, reruns=1).ask().last(), RunReport)
    assert executor.runs == 2
    assert isinstance(work(Mortal(deaths=2), reruns=1).ask().last(), WorkerDied)


def test_what_was_on_its_way_to_a_dead_replica_is_not_lost(work):
    assert isinstance(work(Mortal(deaths=1, has_begun=False)).ask().last(), RunReport)
    # But for once only: it might be what kills them.
    assert isinstance(work(Mortal(deaths=2, has_begun=False)).ask().last(), WorkerDied)


def test_an_idle_replica_that_dies_is_started_again(work):
    one = work(Mortal(idle_deaths=2))
    assert isinstance(one.ask().last(), RunReport)
    assert isinstance(one.ask().last(), RunReport)


def test_a_replica_that_cannot_be_started_again_is_tried_again(work):
    executor = Mortal(deaths=1)
    one = work(executor)
    executor.starts = [OutOfMemory("loading", None, None), WorkerDied("0", "did not load")]
    first, second = one.ask(), one.ask()
    assert isinstance(first.last(), WorkerDied)
    assert isinstance(second.last(), RunReport)
    assert one.restarts == 1


def test_deaths_in_a_row_end_the_lane_with_the_reason(work):
    one = work(Mortal(deaths=9), max_deaths=3)
    heard = [one.ask() for _ in range(3)]
    assert one.gone.wait(10)
    assert [type(each.last()) for each in heard] == [WorkerDied] * 3
    (reason,) = one.reasons
    assert "died 3 times in a row" in reason
    assert one.lane.health.state is LaneState.FAILED


def test_a_finished_request_ends_the_row(work):
    executor = Mortal(deaths=1)
    one = work(executor, max_deaths=2)
    for _ in range(3):
        assert isinstance(one.ask().last(), WorkerDied)
        assert isinstance(one.ask().last(), RunReport)
        executor.deaths = 1
    assert not one.gone.is_set()


def test_a_bug_ends_the_lane_and_its_requests(work, monkeypatch, caplog):
    def fail(self, tickets, feed):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Mortal, "execute", fail)
    one = work(Mortal())
    assert type(one.ask().last()) is EngineError
    assert one.gone.wait(10)
    assert one.reasons != [""]
    assert "the engine's thread died" in caplog.text


def test_a_start_that_fails_in_no_foreseen_way_is_tried_again(work):
    executor = Mortal(deaths=1)
    one = work(executor)
    executor.starts = [RuntimeError("a library says no")]  # type: ignore[list-item]
    assert isinstance(one.ask().last(), WorkerDied)
    assert isinstance(one.ask().last(), RunReport)
    assert one.restarts == 1


def test_a_lane_whose_executor_cannot_be_closed_still_says_that_it_has_ended(work, monkeypatch, caplog):
    executor = Mortal()

    def fail():
        raise RuntimeError("the cluster is gone")

    monkeypatch.setattr(executor, "close", fail)
    one = work(executor)
    one.close()
    assert one.reasons == [""]
    assert "could not be closed" in caplog.text
