"""Messages over TCP: whole, in order; what is no message, or ends in the middle, is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from omnireel.engine.link import LinkClosed
from omnireel.engine.message import Kind, StageMessage
from omnireel.engine.stream import StreamLink


@pytest.fixture
def ends() -> Iterator[tuple[StreamLink, StreamLink]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    links = StreamLink(one, send_seconds=5), StreamLink(other, send_seconds=5)
    yield links
    for link in links:
        link.close()


def passed(ends, body):
    # Large ones do not fit into what the system keeps for a connection.
    sender = threading.Thread(target=ends[0].send, args=(StageMessage(kind=Kind.RUN, request_id="req_1", body=body),))
    sender.start()
    message = ends[1].receive(5)
    sender.join(5)
    assert message is not None
    assert (message.kind, message.request_id) == (Kind.RUN, "req_1")
    return message.body


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (3, 1000, 1001)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_arrays_of_any_size_come_out_as_they_went_in(ends, shape, dtype):
    array = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
    back = passed(ends, array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)


def test_an_array_in_pieces_comes_out_whole_among_other_things(ends):
    array = np.arange(2_000_000, dtype=np.uint8).reshape(1000, 2000)[:, ::2]
    back = passed(ends, {"clip": array, "name": "a kite", "raw": b"12"})
    assert np.array_equal(back["clip"], array)
    assert (back["name"], back["raw"]) == ("a kite", b"12")


def test_nothing_comes_in_that_time(ends):
    assert ends[0].receive(0.01) is None


def test_what_may_not_travel_is_told_to_who_sends(ends):
    with pytest.raises(TypeError, match="may not travel"):
        ends[0].send(StageMessage(kind=Kind.RUN, body=object()))


JUNK = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"\0\0\0\2\0\0\0\2{}[]",
    b"\0\0\0\2\0\0\0\3{}[1]",
    b'\0\0\0\2\0\0\0\x0f{}[["<f8",["a"]]]',
)


@pytest.mark.parametrize("junk", JUNK)
def test_what_is_no_message_breaks_the_connection_off(ends, junk):
    ends[0]._socket.sendall(junk)
    with pytest.raises(LinkClosed):
        ends[1].receive(5)


def test_an_array_of_objects_or_without_measure_is_refused(ends):
    for listed in (b'[["|O", [1]]]', b'[["<f8", [99999999999]]]'):
        ends[0]._socket.sendall(b"\0\0\0\2" + len(listed).to_bytes(4, "big") + b"{}" + listed)
        with pytest.raises(LinkClosed, match="none of ours"):
            ends[1].receive(5)


def test_an_end_that_is_gone_is_told_also_in_the_middle(ends):
    ends[0]._socket.sendall(b"\0\0\0\7")
    ends[0].close()
    with pytest.raises(LinkClosed, match="closed the connection"):
        ends[1].receive(5)


def test_hanging_up_wakes_who_waits(ends):
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            ends[1].receive(30)
        except LinkClosed as error:
            heard.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    ends[1].hang_up()
    thread.join(5)
    assert len(heard) == 1


def test_an_end_that_does_not_read_is_given_up(ends):
    ends[0]._socket.settimeout(0.2)
    with pytest.raises(LinkClosed, match="timed out"):
        ends[0].send(StageMessage(kind=Kind.RUN, body=np.zeros(50_000_000, np.uint8)))
