"""Files of strangers are read by another process first."""

import asyncio
import io
import struct

import numpy as np
import pytest
from PIL import Image

from omnireel.errors import MediaUnreadable
from omnireel.media.encode import write_clip
from omnireel.request import MediaKind, MediaOutput
from omnireel.server.trial import Trial

pytestmark = pytest.mark.slow


def tried(*files, kind="", start=0.0):
    asked = [{"path": str(path), "kind": kind, "name": f"file[{k}]", "start": start} for k, path in enumerate(files)]
    return asyncio.run(Trial(30.0).tried(asked))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    Image.new("RGB", (20, 10), "red").save(folder / "a.png")
    frames = np.random.default_rng(0).integers(0, 255, (30, 32, 48, 3), dtype=np.uint8)
    wave = np.zeros((2, 40_000), np.float32)
    write_clip(MediaOutput(frames=frames, fps=24.0, wave=wave, sample_rate_hz=32_000), folder / "b.mp4", recipe=None)
    samples = (8000 * np.sin(np.arange(8000))).astype("<i2").tobytes()
    head = (
        b"RIFF"
        + struct.pack("<I", 36 + len(samples))
        + b"WAVEfmt "
        + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    )
    (folder / "c.wav").write_bytes(head + b"data" + struct.pack("<I", len(samples)) + samples)
    return folder


def test_kinds_are_told_from_bytes(files):
    found = tried(files / "a.png", files / "b.mp4", files / "c.wav")
    assert found == [MediaKind.IMAGE, MediaKind.VIDEO, MediaKind.AUDIO]


def test_the_first_bad_file_is_named(files, tmp_path):
    (tmp_path / "cut.png").write_bytes((files / "a.png").read_bytes()[:40])
    with pytest.raises(MediaUnreadable, match=r"^file\[1\]"):
        tried(files / "a.png", tmp_path / "cut.png")


def test_a_kind_that_was_said_must_be_true(files):
    with pytest.raises(MediaUnreadable):
        tried(files / "a.png", kind="video")


def test_a_start_behind_the_end_is_told(files):
    with pytest.raises(MediaUnreadable):
        tried(files / "b.mp4", kind="video", start=50.0)


def test_a_picture_that_unpacks_to_gigabytes_is_refused(tmp_path):
    stream = io.BytesIO()
    Image.new("1", (1, 1)).save(stream, "png")
    bomb = bytearray(stream.getvalue())
    bomb[16:24] = struct.pack(">II", 60_000, 60_000)
    (tmp_path / "bomb.png").write_bytes(bomb)
    with pytest.raises(MediaUnreadable):
        tried(tmp_path / "bomb.png")


def test_no_files_need_no_process():
    assert tried() == []
