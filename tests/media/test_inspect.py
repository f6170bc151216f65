"""A file's facts come from its bytes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from tests.media.test_decode import write_sound, write_video

from omnireel.errors import MediaUnreadable
from omnireel.media.inspect import inspect_media
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
