"""Parts in order, for any number of readers, until the channel is closed."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from omnireel.engine.connectors.channel import Channel
from omnireel.request import Handover


def test_parts_stay_for_whoever_reads_them_again():
    channel = Channel()
    parts = [Handover(tensors={"a": np.arange(3)}), Handover(is_last=True)]
    for part in parts:
        channel.send(part)
    assert [channel.part(index, 0) for index in (0, 1, 0)] == [parts[0], parts[1], parts[0]]


def test_who_waits_is_woken_by_the_part():
    channel = Channel()
    threading.Timer(0.05, channel.send, [Handover(is_last=True)]).start()
    assert channel.part(0, 10) == Handover(is_last=True)


def test_nothing_comes_in_no_time():
    assert Channel().part(0, 0) is None


def test_a_closed_channel_tells_who_waits():
    channel = Channel()
    threading.Timer(0.05, channel.close).start()
    with pytest.raises(ConnectionError):
        channel.part(0, 10)


def test_keys_cannot_be_guessed():
    keys = {Channel().key for _ in range(100)}
    assert {len(key) for key in keys} == {32}
    assert len(keys) == 100
