"""Hand-over between processes of one machine."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
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


def test_who_takes_its_time_between_two_parts_still_gets_all(connector, monkeypatch):
    """More than a socket holds, for a stage that is in a long step."""
    monkeypatch.setattr("omnireel.engine.connectors.shm.GREETING_SECONDS", 0.2)
    channel = Channel()
    receiver = connector.publish(channel).open()
    for number in range(20):
        channel.send(Handover(tensors={"a": np.full(100_000, number, np.uint8)}, is_last=number == 19))
    time.sleep(0.6)
    assert [int(soon(receiver).tensors["a"][0]) for _ in range(20)] == list(range(20))
    receiver.close()


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, live, young, other = (tmp_path / f"omnireel-{name}" for name in ("dead", "live", "young", "other"))
    listeners = {}
    for folder in (dead, live, young):
        folder.mkdir()
        listeners[folder] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listeners[folder].bind(str(folder / "stages"))
    other.mkdir()
    (other / "mine.txt").write_text("a")
    listeners[live].listen()
    for folder in (dead, live, other):
        os.utime(folder, (1, 1))
    SharedMemoryConnector().close()
    for listener in listeners.values():
        listener.close()
    assert {path.name for path in tmp_path.iterdir()} == {"omnireel-live", "omnireel-young", "omnireel-other"}
