"""Hand-over between machines, here over the loopback."""

from __future__ import annotations

import socket

import pytest
from tests.support.handover import check_hand_over, check_loss

from omnireel.engine.connectors.channel import Channel
from omnireel.engine.connectors.tcp import TcpConnector, TcpInbox, TcpReceiver
from omnireel.engine.message import Kind, StageMessage, from_parts, to_parts


@pytest.fixture
def connector():
    made = TcpConnector()
    yield made
    made.close()


def test_parts_arrive(connector):
    check_hand_over(connector)


def test_the_end_of_the_other_side_is_told(connector):
    check_loss(connector)


def test_an_inbox_travels(connector):
    inbox = connector.publish(Channel())
    assert from_parts(*to_parts(StageMessage(kind=Kind.RUN, body=inbox))).body == inbox


def test_the_port_is_free_again(connector):
    inbox = connector.publish(Channel())
    connector.close()
    connector.close()
    with pytest.raises(ConnectionError, match="cannot be reached"):
        inbox.open()
    socket.create_server((inbox.host, inbox.port)).close()


def test_nobody_there_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionError, match="cannot be reached"):
        TcpInbox(host="127.0.0.1", port=port, key="0" * 32).open()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff" * 64,
        b"\0\0\0\2\0\0\0\2{}[]",
        b"\0\0\0\2\0\0\0\x0f{}" + b'[["<f8", [3e9]]]',
        b"\0\0\0\2\0\0\0\x0d{}" + b'[["|O", [1]]]',
    ],
)
def test_what_is_no_part_is_told_and_takes_no_memory(said):
    ours, theirs = socket.socketpair()
    receiver = TcpReceiver(ours)
    theirs.sendall(said)
    theirs.close()
    with pytest.raises(ConnectionError):
        receiver.receive(10)
    receiver.close()
