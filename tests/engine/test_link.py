"""Messages between two ends: whole, in order, large ones without a copy; an end that is gone is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from omnireel.engine import link as module
from omnireel.engine.blocks import MIN_SHARED_BYTES, new_array
from omnireel.engine.link import LinkClosed, SocketLink
from omnireel.engine.message import Kind, StageMessage


@pytest.fixture
def ends() -> Iterator[tuple[SocketLink, SocketLink]]:
    one, other = (SocketLink(end, send_seconds=5) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def passed(ends, body):
    ends[0].send(StageMessage(kind=Kind.RUN, request_id="req_1", body=body))
    message = ends[1].receive(5)
    assert message is not None
    assert (message.kind, message.request_id) == (Kind.RUN, "req_1")
    return message.body


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (600, 600)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_arrays_of_any_size_come_out_as_they_went_in(ends, shape, dtype):
    array = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
    back = passed(ends, array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)


def test_an_array_in_pieces_comes_out_whole(ends):
    array = np.arange(2_000_000, dtype=np.uint8).reshape(1000, 2000)[:, ::2]
    assert np.array_equal(passed(ends, array), array)


def test_what_lies_in_shared_memory_is_the_same_memory_on_the_other_side(ends):
    array = new_array((2, MIN_SHARED_BYTES))
    back = passed(ends, array[1:])
    array[1, 5] = 9
    assert back[0, 5] == 9
    back[0, 6] = 8
    assert array[1, 6] == 8


def test_no_descriptor_is_left_when_the_arrays_are_gone(ends):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        passed(ends, [np.zeros(MIN_SHARED_BYTES, np.uint8), np.zeros(MIN_SHARED_BYTES, np.uint8), np.zeros(3)])
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_messages_of_many_threads_do_not_mix(ends):
    def send(number):
        for k in range(50):
            ends[0].send(StageMessage(kind=Kind.STEP, request_id=f"{number}", body=[k] * 100))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    got = [ends[1].receive(5) for _ in range(200)]
    for thread in threads:
        thread.join()
    for number in range(4):
        assert [one.body[0] for one in got if one.request_id == f"{number}"] == list(range(50))


def test_nothing_comes_in_its_time(ends):
    assert ends[1].receive(0.01) is None


def test_an_end_that_is_gone_is_told_on_both_ways(ends):
    ends[0].close()
    with pytest.raises(LinkClosed):
        ends[1].receive(5)
    with pytest.raises(LinkClosed):
        ends[1].send(StageMessage(kind=Kind.PING))


@pytest.mark.parametrize("data", [b"x" * 16, b"\xff" * 64, b"\0" * 15 + b"\1x"])
def test_what_is_no_message_closes_the_link(data):
    ours, theirs = socket.socketpair()
    link = SocketLink(ours)
    with theirs:
        theirs.sendall(data)
    with pytest.raises(LinkClosed):
        link.receive(5)
    link.close()


def test_an_end_that_breaks_off_in_a_message_is_told():
    ours, theirs = socket.socketpair()
    link = SocketLink(ours)
    with theirs:
        theirs.sendall(module._PREFIX.pack(100, 2, 0) + b"half")
    with pytest.raises(LinkClosed, match="closed"):
        link.receive(5)
    link.close()


def test_too_many_large_arrays_are_refused(ends, monkeypatch):
    monkeypatch.setattr(module, "MAX_BLOCKS", 1)
    with pytest.raises(TypeError, match="more than 1"):
        passed(ends, [np.zeros(MIN_SHARED_BYTES, np.uint8)] * 2)


@pytest.mark.parametrize("name", ["_MAX_HEAD_BYTES", "_MAX_INLINE_BYTES"])
def test_a_message_that_would_be_refused_is_not_sent(monkeypatch, ends, name):
    monkeypatch.setattr(f"omnireel.engine.link.{name}", 200)
    one, other = ends
    with pytest.raises(TypeError, match="too large"):
        one.send(StageMessage(kind=Kind.RUN, body=np.zeros(300) if "INLINE" in name else "x" * 300))
    one.send(StageMessage(kind=Kind.PING))
    assert other.receive(1).kind is Kind.PING
