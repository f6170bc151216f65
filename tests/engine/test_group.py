"""Several processes behind one link: what is heard of them, and that one that fails, dies or hangs is dealt with for all."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from functools import partial

import numpy as np
import pytest
from tests.support.engines import Heard, request
from tests.support.processes import alive, children, open_files, shared_names, until

from omnireel.config import resolve
from omnireel.engine import group as module
from omnireel.engine.build import worker_specs
from omnireel.engine.group import GroupLink
from omnireel.engine.link import LinkClosed, SocketLink
from omnireel.engine.message import Kind, StageMessage
from omnireel.engine.runner import RunReport
from omnireel.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineError,
    InvalidRequest,
    OutOfMemory,
    RankLost,
    StorageFailed,
    WorkerDied,
)
from omnireel.request import MediaOutput

SLOW = {"step_seconds": 0.05}
BUG = EngineError("failed")


class Rank:
    """A worker's end of a link, played by the test; also the link."""

    def __init__(self, child) -> None:
        ours, theirs = socket.socketpair()
        self.link, self.end = SocketLink(ours, send_seconds=5), SocketLink(theirs, send_seconds=5)
        self.pids, self.is_killed, self.child = (1,), False, child
        self.fileno, self.send, self.receive = self.link.fileno, self.link.send, self.link.receive

    def says(self, kind, body=None, request_id="") -> None:
        self.end.send(StageMessage(kind=kind, body=body, request_id=request_id))

    def heard(self):
        found = []
        while (message := self.end.receive(0.0)) is not None:
            found.append((message.kind, message.body))
        return found

    def kill(self) -> None:
        if not self.is_killed:
            self.is_killed = True
            self.end.close()

    def close(self, timeout_seconds) -> bool:
        self.link.close()
        return not self.is_killed

    def epitaph(self):
        return f"ended {self.child[0]}", (self.child[0],)


@pytest.fixture
def ranks(monkeypatch):
    """A link to three ranks, and what the test plays."""
    monkeypatch.setattr(module, "SubprocessLink", Rank)
    monkeypatch.setattr(module, "Child", lambda name, env, kind, fds: (name, env))
    link = GroupLink(worker_specs(resolve({"model": "toy", "device": "cpu", "ulysses_degree": 3}, {}))[0])
    yield link, link._links
    link.kill()
    link.close(0)


def report(peak):
    return RunReport(output=MediaOutput(), durations={}, peak_memory_mb=peak)


def run():
    return StageMessage(kind=Kind.RUN, body=[])


def test_each_rank_is_told_which_it_is_and_listens_to_this_machine_alone(ranks):
    link, members = ranks
    link.send(StageMessage(kind=Kind.LOAD, body=None))
    specs = [member.heard()[0][1] for member in members]
    assert [(spec.member.rank, spec.member.size) for spec in specs] == [(0, 3), (1, 3), (2, 3)]
    assert [member.child[0] for member in members] == ["0-0", "0-1", "0-2"]
    assert all(member.child[1]["GLOO_SOCKET_IFNAME"] == "lo" for member in members)


def test_variables_of_the_users_own_win(monkeypatch):
    found: list[dict[str, str]] = []
    monkeypatch.setattr(module, "SubprocessLink", Rank)

    def child(name, env, *_):
        found.append(env)
        return (name,)

    monkeypatch.setattr(module, "Child", child)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    said = {"model": "toy", "device": "cpu", "ulysses_degree": 2, "env": {"NCCL_SOCKET_IFNAME": "eth8", "MORE": 1}}
    link = GroupLink(worker_specs(resolve(said, {}))[0])
    link.kill()
    link.close(0)
    assert len(found) == 2
    for env in found:
        assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"], env["MORE"]) == ("eth7", "eth8", "1")


def test_a_system_without_room_for_all_ends_those_that_were_started(monkeypatch):
    made: list[Rank] = []

    def child(name, *_):
        if len(made) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return (name,)

    def rank(child):
        made.append(Rank(child))
        return made[-1]

    monkeypatch.setattr(module, "SubprocessLink", rank)
    monkeypatch.setattr(module, "Child", child)
    before = open_files()
    with pytest.raises(BlockingIOError):
        GroupLink(worker_specs(resolve({"model": "toy", "device": "cpu", "ulysses_degree": 3}, {}))[0])
    assert [one.is_killed for one in made] == [True, True]
    assert open_files() == before


def test_it_is_ready_when_all_are(ranks):
    link, members = ranks
    for member in members[1:]:
        member.says(Kind.READY, ("digest", {}))
    assert link.receive(0.01) is None
    members[0].says(Kind.READY, ("first", {}))
    assert link.receive(1).body == ("first", {})


def test_a_model_that_cannot_be_loaded_is_told_at_once_but_not_that_a_rank_lost_another(ranks):
    link, members = ranks
    members[0].says(Kind.FAILED, RankLost(0, "joined"))
    assert link.receive(0.01) is None
    members[1].says(Kind.FAILED, BUG)
    assert link.receive(1).body.message == "failed"


def test_steps_are_the_first_ranks_and_life_is_that_of_all(ranks):
    link, members = ranks
    members[1].says(Kind.STAGE, "encode")
    members[0].says(Kind.STAGE, "prepare")
    assert link.receive(1).body == "prepare"
    link.send(StageMessage(kind=Kind.PING))
    for member in members[:2]:
        member.says(Kind.PONG)
    assert link.receive(0.05) is None
    members[2].says(Kind.PONG)
    assert link.receive(1).kind is Kind.PONG


def test_a_request_is_done_when_it_is_everywhere_with_the_memory_of_the_largest(ranks):
    link, members = ranks
    for member, peak in zip(members[::-1], (5.0, 7.0, 3.0), strict=True):
        assert link.receive(0.01) is None
        member.says(Kind.DONE, report(peak), "r")
    assert link.receive(1).body.peak_memory_mb == 7.0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_error_that_is_told_is_that_of_who_failed_by_itself(ranks, order):
    link, members = ranks
    errors = RankLost(0, "exchanged rows"), BUG, RankLost(2, "exchanged rows")
    for rank in order:
        members[rank].says(Kind.FAILED, errors[rank], "r")
    told = link.receive(1)
    assert (told.kind, told.request_id, told.body.message) == (Kind.FAILED, "r", "failed")


@pytest.mark.parametrize("has_left", [False, True])
def test_ranks_come_together_again_before_the_next_request_where_one_had_left(ranks, has_left):
    link, members = ranks
    for _ in range(2):
        if has_left:
            members[2].says(Kind.LEFT)
        for member in members:
            member.says(Kind.FAILED, BUG, "r")
        assert link.receive(1) is not None
    link.send(run())
    link.send(run())
    for member in members:
        assert [body for kind, body in member.heard() if kind is Kind.JOIN] == [1] * has_left


def test_media_are_copied_once_for_all(ranks):
    link, members = ranks
    frames = np.arange(2**20, dtype=np.uint8)
    link.send(StageMessage(kind=Kind.RUN, body=[frames, np.arange(3)]))
    found = [member.end.receive(1).body for member in members]
    assert all(np.array_equal(large, frames) and small.tolist() == [0, 1, 2] for large, small in found)
    found[0][0][0] = 7
    assert [int(large[0]) for large, _ in found] == [7, 7, 7]
    assert frames[0] == 0


def test_ranks_that_do_not_end_what_another_failed_in_are_told_and_then_all_are_killed(ranks, monkeypatch):
    link, members = ranks
    monkeypatch.setattr(module, "ABORT_SECONDS", 0.05)
    members[1].says(Kind.FAILED, BUG, "r")
    until(lambda: link.receive(0.01) is not None or members[0].heard() == [(Kind.ABORT, None)])
    assert members[2].heard() == [(Kind.ABORT, None)]
    assert members[1].heard() == []
    monkeypatch.setattr(module, "GIVE_UP_SECONDS", 0.1)
    told = next(message for _ in range(100) if (message := link.receive(0.01)) is not None)
    assert told.body.message == "failed"
    assert all(member.is_killed for member in members)
    with pytest.raises(LinkClosed):
        link.receive(1)


def test_one_that_is_gone_takes_the_others_with_it_and_is_named(ranks):
    link, members = ranks
    members[0].says(Kind.STAGE, "encode")
    members[1].end.close()
    assert link.receive(1).body == "encode"
    with pytest.raises(LinkClosed):
        link.receive(1)
    assert link.close(1)
    assert [member.is_killed for member in members] == [True, True, True]
    assert link.epitaph() == ("rank 1: ended 0-1", ("0-1",))


def test_traces_are_those_of_all(ranks):
    link, members = ranks
    members[0].says(Kind.PROFILED, ("a",))
    members[0].says(Kind.PROFILED, ())
    for member, body in zip(members[1:], (("b",), StorageFailed("full")), strict=True):
        member.says(Kind.PROFILED, body)
    assert link.receive(1).body == ("a", "b")
    members[1].says(Kind.PROFILED, ())
    members[2].says(Kind.PROFILED, StorageFailed("full"))
    assert isinstance(link.receive(1).body, StorageFailed)


def submitted(engine, prompt="a kite", **values):
    heard = Heard()
    heard.ticket = engine.submit(request(prompt, **values), heard)
    return heard


def rank_pids(engine):
    return list(engine.health.replicas[0].pids)


@pytest.mark.slow
def test_a_request_fails_alone_whichever_rank_it_fails_on(start):
    whole = submitted(start()).result().recipe.frames_digest
    engine = start(ulysses_degree=2)
    pids = rank_pids(engine)
    assert submitted(engine).result().recipe.engine["ulysses_degree"] == 2
    kinds = {"step:2@1": EngineError, "encode@1": EngineError, "oom@1": OutOfMemory, "step:3@0": EngineError,
             "decode": EngineError, "client": InvalidRequest, "client@1": InvalidRequest}  # fmt: skip
    for fail, kind in kinds.items():
        assert type(submitted(engine, extra_args={"fail": fail}).error()) is kind, fail
        assert submitted(engine).result().recipe.frames_digest == whole
    cancelled = submitted(engine, extra_args=SLOW, num_inference_steps=100)
    until(lambda: len(cancelled.steps) == 2)
    cancelled.ticket.cancel()
    assert isinstance(cancelled.error(), Cancelled)
    assert len(cancelled.steps) <= 4
    late = submitted(engine, extra_args=SLOW, num_inference_steps=100, timeout_seconds=0.2)
    assert isinstance(late.error(), DeadlineExceeded)
    assert submitted(engine).result().recipe.frames_digest == whole
    assert (rank_pids(engine), engine.health.replicas[0].restarts) == (pids, 0)


@pytest.mark.slow
def test_a_rank_that_is_killed_or_stopped_is_replaced_with_all_and_nothing_is_left(start):
    before = children(), shared_names(), open_files()
    engine = start(ulysses_degree=2, worker_timeout_seconds=1.0)
    pids = []
    for number, word in ((signal.SIGKILL, "rank 1: SIGKILL"), (signal.SIGSTOP, "gave no sign of life for 1 s")):
        heard = submitted(engine, extra_args=SLOW, num_inference_steps=200)
        until(partial(len, heard.events))
        pids += rank_pids(engine)
        began = time.monotonic()
        os.kill(pids[-1], number)
        error = heard.error()
        assert isinstance(error, WorkerDied)
        assert word in error.message
        assert time.monotonic() - began < 8
        assert submitted(engine).result().frames is not None
    pids += rank_pids(engine)
    assert engine.health.replicas[0].restarts == 2
    engine.close()
    assert not [pid for pid in pids if alive(pid)]
    assert (children(), shared_names(), open_files()) == before


@pytest.mark.soak
def test_an_interrupted_request_runs_again_where_that_is_set(start):
    engine = start(ulysses_degree=2, rerun_interrupted=True)
    heard = submitted(engine, extra_args=SLOW, num_inference_steps=20)
    until(lambda: heard.steps)
    os.kill(rank_pids(engine)[1], signal.SIGKILL)
    assert heard.result().frames is not None
    assert not [thread for thread in threading.enumerate() if "omnireel-load" in thread.name]


@pytest.mark.parametrize(("rank", "kind"), [(0, MemoryError), (1, LinkClosed)])
def test_what_only_some_ranks_were_sent_ends_them_all(ranks, monkeypatch, rank, kind):
    """While what none was sent is a failure of that request alone."""
    link, members = ranks

    def none_left(message):
        raise MemoryError("no shared memory")

    monkeypatch.setattr(members[rank], "send", none_left)
    with pytest.raises(kind):
        link.send(run())
    assert [bool(member.heard()) for member in members] == [number < rank for number in range(3)]
