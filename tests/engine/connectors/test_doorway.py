"""Who is let in at a connector's socket, and who is not."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress

import pytest
from tests.support.processes import until

from omnireel.engine.connectors import doorway
from omnireel.engine.connectors.channel import Channel
from omnireel.engine.connectors.doorway import Doorway
from omnireel.request import Handover


class Words:
    """A wire that says how many arrays a part has."""

    def __init__(self, end):
        self._end = end

    def send(self, part):
        self._end.sendall(b"%d" % len(part.tensors))

    def close(self):
        self._end.close()


@pytest.fixture
def port():
    listener = socket.create_server(("127.0.0.1", 0))
    door = Doorway(listener, Words)
    channel = Channel()
    channel.send(Handover(is_last=True))
    door.publish(channel)
    yield listener.getsockname()[1], channel.key
    door.close()


def answer(port, said, *, is_open=False):
    with socket.create_connection(("127.0.0.1", port), 10) as end:
        try:
            end.sendall(said)
            if not is_open:
                end.shutdown(socket.SHUT_WR)
            return end.recv(100)
        except OSError:
            # It was hung up on before it had said everything.
            return b""


def test_who_knows_the_key_is_sent_the_parts(port):
    number, key = port
    assert answer(number, key.encode(), is_open=True) == b"0"


@pytest.mark.parametrize("said", [b"", b"0" * 10, b"0" * 32, b"\xff" * 32, b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"])
def test_anybody_else_is_hung_up_on(port, said, caplog):
    with caplog.at_level(logging.WARNING, "omnireel"):
        assert answer(port[0], said) == b""
    assert port[1] not in caplog.text


def test_who_says_nothing_is_hung_up_on_after_a_while(port, monkeypatch):
    monkeypatch.setattr(doorway, "GREETING_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", port[0]), 10) as end:
        assert end.recv(1) == b""


def test_a_silent_one_keeps_nobody_else_waiting(port):
    number, key = port
    with socket.create_connection(("127.0.0.1", number), 10):
        assert answer(number, key.encode(), is_open=True) == b"0"


def test_it_goes_on_when_descriptors_have_run_out_for_a_moment(monkeypatch, caplog):
    class Scarce(socket.socket):
        left = 2

        def accept(self):
            if Scarce.left:
                Scarce.left -= 1
                raise OSError(24, "Too many open files")
            return super().accept()

    listener = Scarce()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    door = Doorway(listener, Words)
    channel = Channel()
    channel.send(Handover(is_last=True))
    door.publish(channel)
    assert answer(listener.getsockname()[1], channel.key.encode(), is_open=True) == b"0"
    door.close()
    assert "Too many open files" in caplog.text


def test_a_byte_now_and_then_does_not_keep_a_place(port, monkeypatch):
    monkeypatch.setattr(doorway, "GREETING_SECONDS", 0.3)
    sent = 0
    with socket.create_connection(("127.0.0.1", port[0]), 10) as end, suppress(OSError):
        end.settimeout(0.1)
        while sent < 30:
            end.sendall(b"0")
            sent += 1
            try:
                assert end.recv(1) == b""
                break
            except TimeoutError:
                continue
    assert 0 < sent < 20


def test_no_more_than_some_may_make_up_their_minds_at_a_time(monkeypatch, caplog):
    monkeypatch.setattr(doorway, "MAX_GREETINGS", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    door = Doorway(listener, Words)
    number = listener.getsockname()[1]
    channel = Channel()
    channel.send(Handover(is_last=True))
    door.publish(channel)
    with socket.create_connection(("127.0.0.1", number), 10) as first:
        first.sendall(b"0")
        until(lambda: not door._greetings._value)
        assert answer(number, channel.key.encode(), is_open=True) == b""
    until(lambda: door._greetings._value)
    assert answer(number, channel.key.encode(), is_open=True) == b"0"
    door.close()
    assert "another one was hung up on" in caplog.text
