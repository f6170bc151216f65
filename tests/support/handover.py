"""What every connector must do, whichever way its arrays go."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from omnireel.engine.connectors import Connector
from omnireel.engine.connectors.channel import Channel
from omnireel.request import Handover, Receiver

ARRAYS: dict[str, Any] = {
    "words": np.arange(5, dtype=np.int64),
    "none": np.zeros((0, 3), np.float32),
    "one": np.array(0.5),
    "turned": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "large": np.arange(300_000, dtype=np.float64).reshape(3, -1),
}


def soon(receiver: Receiver, seconds: float = 10.0) -> Handover:
    """The next part, which must come."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        part = receiver.receive(0.1)
        if part is not None:
            return part
    raise AssertionError("no part came")


def check_hand_over(connector: Connector) -> None:
    """Parts arrive whole and in order, before and after they were sent, and for each receiver from the first on."""
    channel = Channel()
    inbox = connector.publish(channel)
    early = inbox.open()
    assert early.receive(0.05) is None
    channel.send(Handover(tensors=ARRAYS))
    channel.send(Handover(tensors={"words": np.arange(2)}))
    channel.send(Handover(is_last=True))
    for receiver in (early, inbox.open()):
        first, second, last = (soon(receiver) for _ in range(3))
        assert first.tensors.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            assert first.tensors[name].dtype == array.dtype
            assert first.tensors[name].shape == array.shape
            assert np.array_equal(first.tensors[name], array)
        assert second.tensors["words"].tolist() == [0, 1]
        assert (dict(last.tensors), last.is_last) == ({}, True)
        receiver.close()
    connector.withdraw(channel)


def check_loss(connector: Connector) -> None:
    """Who waits is told when the other side gives up, and who comes too late as well."""
    channel = Channel()
    inbox = connector.publish(channel)
    early = inbox.open()
    connector.withdraw(channel)
    for receiver in (early, inbox.open()):
        with pytest.raises(ConnectionError):
            soon(receiver)
        receiver.close()
