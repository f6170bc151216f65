"""A file's facts come from its bytes."""

from __future__ import annotations

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image
from tests.media.test_decode import write_sound, write_video

from omnireel.errors import MediaUnreadable
from omnireel.media.decode import read_clip, read_sound
from omnireel.media.inspect import inspect_media, picture_errors
from omnireel.request import MediaKind


def test_a_clip_tells_size_rate_length_and_codecs(tmp_path):
    path = write_video(tmp_path / "a.mp4", fps=12, sound_hz=44100, rotation=90)
    facts = inspect_media(path, kind=MediaKind.VIDEO, name="a")
    assert (facts.width, facts.height, facts.fps) == (32, 64, 12.0)
    assert (facts.video_codec, facts.audio_codec, facts.sample_rate_hz, facts.channels) == ("h264", "aac", 44100, 2)
    assert facts.seconds == pytest.approx(1.0, abs=0.1)
    assert facts.has_sound


def test_a_misnamed_file_is_known_by_its_bytes(tmp_path):
    path = write_video(tmp_path / "a.mp4").rename(tmp_path / "a.txt")
    assert inspect_media(path, kind=MediaKind.VIDEO, name="a").video_codec == "h264"


def test_a_recording_tells_rate_and_channels(tmp_path):
    path = write_sound(tmp_path / "s.wav", np.zeros((1, 8000)), 8000, codec="pcm_s16le", layout="mono")
    facts = inspect_media(path.read_bytes(), kind=MediaKind.AUDIO, name="s")
    assert (facts.sample_rate_hz, facts.channels, facts.size_bytes) == (8000, 1, path.stat().st_size)


def test_a_picture_tells_its_size_as_shown():
    picture = Image.new("RGB", (8, 4))
    exif = picture.getexif()
    exif[0x0112] = 8
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", exif=exif)
    facts = inspect_media(buffer.getvalue(), kind=MediaKind.IMAGE, name="p")
    assert (facts.container, facts.width, facts.height) == ("jpeg", 4, 8)


@pytest.mark.parametrize("kind", list(MediaKind))
def test_a_missing_an_empty_and_a_foreign_file_are_refused(tmp_path, kind):
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello " * 100)
    for name in ("gone", "empty", "text"):
        with pytest.raises(MediaUnreadable, match="reference"):
            inspect_media(tmp_path / name, kind=kind, name="reference")


def test_a_clip_asked_for_as_a_recording_without_sound_is_refused(tmp_path):
    with pytest.raises(MediaUnreadable, match="has no sound"):
        inspect_media(write_video(tmp_path / "a.mp4"), kind=MediaKind.AUDIO, name="a")


def test_a_picture_that_is_cut_before_its_tags_is_refused():
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48)).save(buffer, "PNG")
    whole = buffer.getvalue()
    with pytest.raises(MediaUnreadable, match=r"^p: cannot be read as a picture"):
        inspect_media(whole[: whole.index(b"IDAT") + 10], kind=MediaKind.IMAGE, name="p")


@pytest.mark.parametrize("kind", [RuntimeError, OSError, SyntaxError, zlib.error, struct.error, IndexError])
def test_whatever_a_picture_library_raises_is_the_files_fault(kind):
    with pytest.raises(MediaUnreadable, match=f"^p: .*{kind.__name__}"), picture_errors("p"):
        raise kind


def test_warnings_of_a_picture_library_are_not_shown():
    # Warnings are errors in tests.
    with picture_errors("p"):
        warnings.warn("Corrupt EXIF data", UserWarning, stacklevel=1)


def test_a_clip_whose_codec_is_not_known_has_no_pictures(tmp_path):
    content = write_video(tmp_path / "a.mp4", sound_hz=44100).read_bytes().replace(b"avc1", b"zzzz")
    with pytest.raises(MediaUnreadable, match="has no pictures"):
        inspect_media(content, kind=MediaKind.VIDEO, name="a")
    with pytest.raises(MediaUnreadable, match="has no pictures"):
        read_clip(content, name="a", fps=24.0)
    assert inspect_media(content, kind=MediaKind.AUDIO, name="a").audio_codec == "aac"


def test_a_clip_whose_sound_is_of_no_known_codec_is_silent(tmp_path):
    content = (
        write_video(tmp_path / "a.mp4", sound_hz=44100).read_bytes().replace(b"mp4a", b"zzzz").replace(b"esds", b"zzzz")
    )
    assert not inspect_media(content, kind=MediaKind.VIDEO, name="a").has_sound
    assert read_clip(content, name="a", fps=24.0).sound is None
    with pytest.raises(MediaUnreadable, match="has no sound"):
        read_sound(content, name="a")
