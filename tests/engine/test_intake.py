"""Parts one by one or all at once, and what ends the wait for them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from omnireel.engine.connectors.channel import Channel
from omnireel.engine.connectors.memory import MemoryConnector
from omnireel.engine.intake import Intake
from omnireel.errors import Cancelled, ConnectorLost
from omnireel.request import Handover


def part(*values: float) -> Any:
    return {"words": np.array(values)}


@pytest.fixture
def channel():
    return Channel()


def intake(channel, pause=lambda: None):
    return Intake(MemoryConnector().publish(channel), pause)


def test_parts_come_one_by_one_and_end(channel):
    taken = intake(channel)
    channel.send(Handover(tensors=part(1, 2)))
    first = taken.next()
    channel.send(Handover(tensors=part(3), is_last=True))
    second = taken.next()
    assert first is not None
    assert second is not None
    assert (first["words"].tolist(), second["words"].tolist()) == ([1, 2], [3])
    assert taken.next() is None


def test_an_end_without_arrays_is_no_part(channel):
    channel.send(Handover(is_last=True))
    assert intake(channel).next() is None
    assert intake(channel).whole() == {}


def test_the_whole_is_all_arrays(channel):
    channel.send(Handover(tensors={"a": np.array(1)}))
    channel.send(Handover(tensors={"b": np.array(2)}, is_last=True))
    assert {name: int(array) for name, array in intake(channel).whole().items()} == {"a": 1, "b": 2}


def test_a_wait_is_ended_by_what_a_pause_raises(channel):
    given_up = threading.Event()

    def pause():
        if given_up.is_set():
            raise Cancelled("req_1", "here")

    threading.Timer(0.1, given_up.set).start()
    with pytest.raises(Cancelled):
        intake(channel, pause).next()


def test_a_lost_connector_is_an_error_with_a_hint(channel):
    channel.close()
    with pytest.raises(ConnectorLost) as told:
        intake(channel).next()
    assert told.value.hint
