"""Hand-over within one process: the very arrays."""

from __future__ import annotations

from tests.support.handover import ARRAYS, check_hand_over, check_loss, soon

from omnireel.engine.connectors.channel import Channel
from omnireel.engine.connectors.memory import MemoryConnector
from omnireel.request import Handover


def test_parts_arrive():
    check_hand_over(MemoryConnector())


def test_the_end_of_the_other_side_is_told():
    check_loss(MemoryConnector())


def test_nothing_is_copied():
    channel, connector = Channel(), MemoryConnector()
    channel.send(Handover(tensors=ARRAYS))
    assert soon(connector.publish(channel).open()).tensors["large"] is ARRAYS["large"]
    connector.close()
