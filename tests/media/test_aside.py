"""A file is there whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from omnireel.errors import InvalidRequest
from omnireel.media.aside import check_writable, written_aside


def half_write(path: Path, error: BaseException) -> None:
    with written_aside(path, suffixes=(".mp4",)) as aside:
        aside.write_bytes(b"half")
        raise error


def test_a_finished_file_takes_its_place(tmp_path):
    with written_aside(tmp_path / "a.mp4", suffixes=(".mp4",)) as aside:
        aside.write_bytes(b"new")
        assert not (tmp_path / "a.mp4").exists()
    assert (tmp_path / "a.mp4").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_any_error_and_the_old_file_stays(tmp_path, error):
    (tmp_path / "a.mp4").write_bytes(b"old")
    with pytest.raises(error):
        half_write(tmp_path / "a.mp4", error())
    assert (tmp_path / "a.mp4").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_a_full_disk_is_told_as_such(tmp_path):
    with pytest.raises(InvalidRequest, match="No space left"):
        half_write(tmp_path / "a.mp4", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a.avi", r"must end in \.mp4"),
        ("a", r"must end in \.mp4"),
        ("missing/a.mp4", "does not exist"),
        ("folder.mp4", "is a folder"),
        ("x" * 300 + ".mp4", "name too long"),
        ("a\0b.mp4", "null"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path, name, problem):
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(InvalidRequest, match=problem) as raised:
        check_writable(tmp_path / name)
    assert raised.value.details["field"] == "output"


def test_a_file_system_that_refuses_is_told(tmp_path):
    with pytest.raises(InvalidRequest, match="cannot be written"):
        check_writable(Path("/proc/a.mp4"))


def test_asking_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x" * 251, "\u4e2d" * 83, "\udcff"])
def test_any_name_that_the_folder_takes_finds_room_for_its_hidden_one(tmp_path, name):
    path = tmp_path / f"{name}.mp4"
    with written_aside(path, suffixes=(".mp4",)) as aside:
        aside.write_bytes(b"1")
    assert path.exists()
