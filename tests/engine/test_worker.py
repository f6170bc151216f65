"""A worker over a link, in this process: what it is sent, what it answers, and when it ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from tests.support.engines import ticket

from omnireel.config import resolve
from omnireel.engine.build import worker_specs
from omnireel.engine.link import SocketLink
from omnireel.engine.message import Kind, StageMessage
from omnireel.engine.worker import Worker
from omnireel.errors import Cancelled, EngineError
from omnireel.models.toy.pipeline import ToyPipeline


class Talk:
    """The engine's side of a worker."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.link, self._theirs = SocketLink(ours, send_seconds=5), SocketLink(theirs, send_seconds=5)
        self.codes: list[int] = []
        self.left = threading.Event()
        self.worker = Worker(self._theirs, self._leave)
        self.thread = threading.Thread(target=self.worker.serve)
        self.thread.start()

    def _leave(self, code: int) -> None:
        self.codes.append(code)
        self.left.set()

    def close(self) -> None:
        """As an engine does, which ends the worker; its reader sees that the engine is gone."""
        self.send(Kind.CLOSE)
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.link.close()
        assert self.left.wait(10)
        self._theirs.close()

    def send(self, kind: Kind, body: object = None, request_id: str = "") -> None:
        self.link.send(StageMessage(kind=kind, request_id=request_id, body=body))

    def next(self, *kinds: Kind) -> StageMessage:
        """The next message of one of these kinds; others are dropped."""
        while True:
            message = self.link.receive(10)
            assert message is not None
            if message.kind in kinds:
                return message

    def load(self, **flags: object) -> StageMessage:
        self.send(Kind.LOAD, worker_specs(resolve({"model": "toy", "device": "cpu", **flags}, {}))[0])
        return self.next(Kind.READY, Kind.FAILED)


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Talk]:
    monkeypatch.setattr("omnireel.engine.worker.log.configure", lambda *values, **more: None)
    monkeypatch.setattr("omnireel.engine.worker.set_title", lambda *words: None)
    one = Talk()
    yield one
    one.close()


def run_of(*tickets):
    return [(one.workload, one.timeout_seconds, 0.0) for one in tickets]


def test_it_tells_when_it_is_ready_and_what_recipes_remember(talk):
    message = talk.load()
    digest, facts = message.body
    assert (message.kind, digest, facts["device"]) == (Kind.READY, "", "cpu")


def test_a_request_gives_stages_steps_and_its_report(talk):
    talk.load()
    one = ticket()
    talk.send(Kind.RUN, run_of(one))
    got = [talk.next(*Kind) for _ in range(8)]
    assert [message.kind for message in got] == [Kind.STAGE] * 2 + [Kind.STEP] * 4 + [Kind.STAGE, Kind.DONE]
    assert got[-1].request_id == one.request_id
    assert got[-1].body.output.frames.shape == (3, 16, 16, 3)


def test_requests_of_one_message_are_stepped_together(talk, monkeypatch):
    sizes: list[int] = []
    before = ToyPipeline.step_batch

    def counted(self, states):
        sizes.append(len(states))
        return before(self, states)

    monkeypatch.setattr(ToyPipeline, "step_batch", counted)
    talk.load(max_num_seqs=3)
    talk.send(Kind.RUN, run_of(ticket(), ticket(seed=2), ticket(seed=3)))
    for _ in range(3):
        talk.next(Kind.DONE)
    assert sizes == [3, 3, 3, 3]


def test_signs_of_life_are_given_and_cancelling_is_heard_during_a_step(talk):
    talk.load()
    one = ticket(extra_args={"step_seconds": 0.2}, num_inference_steps=100)
    talk.send(Kind.RUN, run_of(one))
    talk.next(Kind.STAGE)
    talk.send(Kind.PING)
    talk.next(Kind.PONG)
    talk.send(Kind.CANCEL, request_id=one.request_id)
    talk.send(Kind.CANCEL, request_id="req_unknown")
    assert isinstance(talk.next(Kind.FAILED).body, Cancelled)


def test_what_goes_wrong_while_loading_is_told(talk, monkeypatch):
    def fail(context):
        raise ValueError("/home/x")

    monkeypatch.setattr(ToyPipeline, "build", fail)
    message = talk.load()
    assert type(message.body) is EngineError
    assert "/home/x" not in message.body.message


def test_closing_ends_what_runs(talk):
    talk.load()
    talk.send(Kind.RUN, run_of(ticket(extra_args={"step_seconds": 0.1}, num_inference_steps=100)))
    talk.next(Kind.STAGE)
    talk.send(Kind.CLOSE)
    assert isinstance(talk.next(Kind.FAILED).body, Cancelled)
