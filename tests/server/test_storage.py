"""The storage root: whole or absent, one server, no orphans."""

import errno
import io
import os

import pytest

from omnireel.errors import SetupError, StorageFailed, TooLarge
from omnireel.server.storage import Storage, copied, storage_errors


@pytest.fixture
def storage(tmp_path):
    found = Storage(tmp_path / "new" / "root")
    yield found
    found.close()


def test_a_root_is_made_where_there_is_none(storage):
    assert storage.root.is_dir()
    assert not list((storage.root / "incoming").iterdir())


def test_one_server_a_root_and_another_after_it(tmp_path):
    first = Storage(tmp_path)
    with pytest.raises(SetupError, match="another server"):
        Storage(tmp_path)
    first.close()
    Storage(tmp_path).close()


def test_a_root_that_is_a_file_cannot_be_used(tmp_path):
    (tmp_path / "root").write_text("")
    with pytest.raises(SetupError, match="cannot be used"):
        Storage(tmp_path / "root")


def test_what_arrives_is_kept_whole_or_not_at_all(storage):
    with storage.arriving() as folder:
        (folder / "input-0").write_bytes(b"x")
        storage.keep(folder, storage.video("video_1"))
    assert (storage.video("video_1") / "input-0").read_bytes() == b"x"
    with storage.arriving() as folder:
        (folder / "input-0").write_bytes(b"x")
    assert not list((storage.root / "incoming").iterdir())


def test_a_sweep_removes_what_was_being_written_when_the_server_was_killed(storage):
    storage.video("video_1").mkdir()
    for name in ("clip.mp4", ".omnireel-0f.part.mp4"):
        (storage.video("video_1") / name).write_bytes(b"x")
    assert storage.sweep({"video_1"}, set()) == 1
    assert [path.name for path in storage.video("video_1").iterdir()] == ["clip.mp4"]


def test_a_sweep_removes_what_belongs_to_nobody(storage):
    for name in ("video_1", "video_2"):
        storage.video(name).mkdir()
        (storage.video(name) / "clip.mp4").write_bytes(b"x")
    storage.file("file_1").write_bytes(b"x")
    storage.file("file_2").write_bytes(b"x")
    (storage.root / "incoming" / "left").mkdir()
    assert storage.sweep({"video_1"}, {"file_1"}) == 3
    assert [path.name for path in (storage.root / "videos").iterdir()] == ["video_1"]
    assert [path.name for path in (storage.root / "files").iterdir()] == ["file_1"]


def test_dropping_what_is_not_there_is_no_error(storage):
    storage.drop(storage.video("video_0"))
    storage.drop(storage.file("file_0"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_full_or_broken_disk_has_an_error_of_its_own(number):
    with pytest.raises(StorageFailed) as caught, storage_errors():
        raise OSError(number, os.strerror(number), "/a/secret/path")
    assert "secret" not in caught.value.message


def test_other_errors_are_bugs():
    with pytest.raises(IsADirectoryError), storage_errors():
        raise IsADirectoryError(errno.EISDIR, "is a directory")


def test_a_copy_stops_at_its_limit(tmp_path):
    copied(io.BytesIO(b"x" * 10), tmp_path / "a", name="f", max_bytes=10)
    assert (tmp_path / "a").stat().st_size == 10
    with pytest.raises(TooLarge, match="f: it holds more than 9 bytes"):
        copied(io.BytesIO(b"x" * 10), tmp_path / "b", name="f", max_bytes=9)
