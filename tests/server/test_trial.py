"""Files of strangers are read by another process first."""

import asyncio
import io
import json
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from omnireel.errors import MediaUnreadable
from omnireel.media.encode import write_clip
from omnireel.request import MediaKind, MediaOutput
from omnireel.server import trial
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


def malformed(folder, files):
    """Fifty files that are broken each in its own way, by name."""
    random = np.random.default_rng(1)
    picture, clip, sound = ((files / name).read_bytes() for name in ("a.png", "b.mp4", "c.wav"))
    made = {"empty": b"", "zeros": bytes(1000), "text": b"no medium at all", "html": b"<html><script>1</script></html>"}
    made |= {f"noise-{k}": random.bytes(2000) for k in range(4)}
    made |= {f"picture-cut-{k}": picture[:k] for k in (8, 16, 33, 50)}
    made |= {f"clip-cut-{k}": clip[:k] for k in (8, 40, 200, 1000, 3000)}
    made |= {f"sound-cut-{k}": sound[:k] for k in (4, 12, 30, 43)}
    magics = {
        "jpeg": b"\xff\xd8\xff\xe0", "gif": b"GIF89a", "webp": b"RIFF\x10\0\0\0WEBP", "bmp": b"BM", "tiff": b"II*\0", "heif": b"\0\0\0\x18ftypheic",
        "avif": b"\0\0\0\x18ftypavif", "mkv": b"\x1aE\xdf\xa3", "ogg": b"OggS", "flac": b"fLaC", "mp3": b"ID3\4", "avi": b"RIFF\x10\0\0\0AVI ",
        "pdf": b"%PDF-1.7", "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>", "zip": b"PK\3\4", "m3u": b"#EXTM3U\nfile:///etc/passwd\n",
        "concat": b"ffconcat version 1.0\nfile /etc/passwd\n", "eps": b"%!PS-Adobe-3.0 EPSF-3.0", "psd": b"8BPS", "ico": b"\0\0\1\0\1\0",
    }  # fmt: skip
    made |= {f"magic-{name}": magic + random.bytes(600) for name, magic in magics.items()}
    for k in range(9):
        # The boxes of an MP4 file come first, with their sizes.
        broken = bytearray(clip)
        for place in random.integers(0, 400, 60):
            broken[place] = random.integers(256)
        made[f"clip-hurt-{k}"] = bytes(broken)
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in made]


def test_fifty_malformed_files_are_each_refused_or_read_in_bounded_time_and_memory(files, tmp_path):
    asked = malformed(tmp_path, files)
    assert len(asked) >= 50
    lines = [{"path": str(path), "kind": "", "name": path.name, "start": 0.0} for path in asked]
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(
        [sys.executable, "-m", "omnireel.server.trial"], input=json.dumps(lines).encode(), capture_output=True,
        timeout=60, check=True, env={"PYTHONPATH": str(Path(trial.__file__).parents[2])},
    )  # fmt: skip
    said = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(said) == len(asked)
    for path, answer in zip(asked, said, strict=True):
        is_hurt = path.name.startswith("clip-hurt")
        assert is_hurt or answer["error"]["code"] == "media_unreadable", path.name
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert spent.ru_utime - began.ru_utime < trial.CPU_SECONDS
    assert spent.ru_maxrss < 2 * 2**20
