"""Hand-over between processes of one machine."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import numpy as np
import pytest
from tests.support.handover import check_hand_over, check_loss, soon

from omnireel.engine.blocks import new_array
from omnireel.engine.connectors.channel import Channel
from omnireel.engine.connectors.shm import SharedMemoryConnector, SharedMemoryInbox
from omnireel.engine.message import Kind, StageMessage, from_parts, to_parts
from omnireel.request import Handover


@pytest.fixture
def connector():
    made = SharedMemoryConnector()
    yield made
    made.close()


def test_parts_arrive(connector):
    check_hand_over(connector)


def test_the_end_of_the_other_side_is_told(connector):
    check_loss(connector)


def test_memory_that_is_shared_is_not_copied(connector):
    channel = Channel()
    array = new_array((2**20,))
    channel.send(Handover(tensors={"a": array}))
    receiver = connector.publish(channel).open()
    seen = soon(receiver).tensors["a"]
    receiver.close()
    array[7] = 9
    assert seen[7] == 9


def test_an_inbox_travels(connector):
    inbox = connector.publish(Channel())
    assert from_parts(*to_parts(StageMessage(kind=Kind.RUN, body=inbox))).body == inbox


def test_its_folder_is_for_this_user_and_goes_with_it(connector):
    folder = connector.publish(Channel()).path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    connector.close()
    connector.close()
    assert not folder.exists()


def test_nothing_is_left_open():
    before = _open_files()
    connector = SharedMemoryConnector()
    channel = Channel()
    channel.send(Handover(tensors={"a": np.zeros(2**20)}, is_last=True))
    receiver = connector.publish(channel).open()
    part = soon(receiver)
    receiver.close()
    del part
    connector.close()
    end = time.monotonic() + 10
    while _open_files() > before:
        assert time.monotonic() < end
        time.sleep(0.02)


def _open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_nobody_there_is_told(tmp_path):
    with pytest.raises(ConnectionError, match="cannot be reached"):
        SharedMemoryInbox(path=tmp_path / "gone", key="0" * 32).open()
