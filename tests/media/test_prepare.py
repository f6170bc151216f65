"""Files and arrays come to a model the same way."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from tests.media.test_decode import write_sound, write_video

from omnireel.errors import MediaUnreadable
from omnireel.media.prepare import media_facts, prepared
from omnireel.request import MediaInput, MediaKind, MediaPlan, MediaRef


def ref(kind: MediaKind, source, **more) -> MediaRef:
    return MediaRef(kind=kind, role="reference", source=source, name="reference[0]", **more)


def test_a_picture_file_is_known_and_fitted(tmp_path):
    Image.new("RGB", (80, 40), (255, 0, 0)).save(tmp_path / "a.png")
    item = ref(MediaKind.IMAGE, tmp_path / "a.png")
    facts = media_facts(item, 0)
    assert (facts.width, facts.height, facts.role, facts.name) == (80, 40, "reference", "reference[0]")
    made = prepared(item, MediaPlan(size=(32, 64), fit="cover"))
    assert made.frames is not None
    assert made.frames.shape == (1, 64, 32, 3)


def test_a_clip_file_comes_onto_the_grid_with_its_sound_cut(tmp_path):
    item = ref(MediaKind.VIDEO, write_video(tmp_path / "a.mp4", fps=12, sound_hz=32_000))
    assert media_facts(item, 0).has_sound
    made = prepared(item, MediaPlan(size=(32, 32), fps=24.0, max_frames=8, max_seconds=0.25))
    assert made.frames is not None
    assert made.wave is not None
    assert made.frames.shape == (8, 32, 32, 3)
    assert (made.fps, made.wave.shape[1]) == (24.0, 8_000)


def test_a_start_time_moves_picture_and_sound(tmp_path):
    path = write_video(tmp_path / "a.mp4", fps=12, sound_hz=32_000)
    whole = prepared(ref(MediaKind.VIDEO, path), MediaPlan(fps=24.0))
    later = prepared(ref(MediaKind.VIDEO, path, start_seconds=0.25), MediaPlan(fps=24.0))
    assert whole.frames is not None
    assert later.frames is not None
    assert np.array_equal(whole.frames[6:], later.frames)


def test_a_recording_file_is_cut(tmp_path):
    path = write_sound(tmp_path / "s.wav", np.zeros((2, 8000)), 8000, codec="pcm_s16le", layout="stereo")
    made = prepared(ref(MediaKind.AUDIO, path), MediaPlan(max_seconds=0.5))
    assert made.wave is not None
    assert made.wave.shape == (2, 4000)


def test_arrays_are_prepared_by_the_same_rules():
    frames = np.arange(6 * 8 * 8 * 3, dtype=np.uint8).reshape(6, 8, 8, 3)
    wave = np.zeros((1, 1000), np.float32)
    item = MediaInput(kind=MediaKind.VIDEO, role="reference", frames=frames, fps=12.0, wave=wave, sample_rate_hz=1000)
    made = prepared(item, MediaPlan(size=(4, 16), fps=24.0, max_frames=9, max_seconds=0.1))
    assert made.frames is not None
    assert made.wave is not None
    assert made.frames.shape == (9, 16, 4, 3)
    assert made.wave.shape == (1, 100)
    assert media_facts(item, 0).seconds == 0.5


@pytest.mark.parametrize(
    "broken",
    [
        {"kind": MediaKind.IMAGE},
        {"kind": MediaKind.IMAGE, "frames": np.zeros((4, 4, 3), np.uint8)},
        {"kind": MediaKind.IMAGE, "frames": np.zeros((1, 4, 4, 3), np.float32)},
        {"kind": MediaKind.IMAGE, "frames": np.zeros((0, 4, 4, 3), np.uint8)},
        {"kind": MediaKind.VIDEO, "frames": np.zeros((2, 4, 4, 3), np.uint8)},
        {"kind": MediaKind.AUDIO},
        {"kind": MediaKind.AUDIO, "wave": np.zeros(5, np.float32), "sample_rate_hz": 8},
        {"kind": MediaKind.AUDIO, "wave": np.zeros((3, 5), np.float32), "sample_rate_hz": 8},
        {"kind": MediaKind.AUDIO, "wave": np.zeros((1, 5), np.float32)},
        {"kind": MediaKind.AUDIO, "wave": np.zeros((1, 5), np.int16), "sample_rate_hz": 8},
        {"kind": MediaKind.AUDIO, "wave": np.zeros((1, 0), np.float32), "sample_rate_hz": 8},
        {"kind": MediaKind.AUDIO, "wave": np.full((1, 5), np.nan, np.float32), "sample_rate_hz": 8},
        {"kind": MediaKind.AUDIO, "wave": np.zeros((1, 5), np.float32), "sample_rate_hz": -8},
        {"kind": MediaKind.AUDIO, "wave": np.zeros((1, 5), np.float32), "sample_rate_hz": 8.5},
        {"kind": MediaKind.AUDIO, "wave": [[0.0]], "sample_rate_hz": 8},
        {"kind": MediaKind.IMAGE, "frames": [0]},
        {"kind": MediaKind.IMAGE, "frames": np.zeros((2, 4, 4, 3), np.uint8)},
        {"kind": MediaKind.VIDEO, "frames": np.zeros((2, 4, 4, 3), np.uint8), "fps": float("inf")},
        {"kind": MediaKind.VIDEO, "frames": np.zeros((2, 4, 4, 3), np.uint8), "fps": "24"},
        {"kind": "image", "frames": np.zeros((1, 4, 4, 3), np.uint8)},
    ],
)
def test_arrays_of_other_shapes_are_refused_by_their_place(broken):
    with pytest.raises(MediaUnreadable, match=r"media\[3\]"):
        media_facts(MediaInput(role="reference", **broken), 3)


def test_a_clip_of_hardly_any_rate_is_cut_before_it_is_repeated():
    frames = np.zeros((30, 4, 4, 3), np.uint8)
    item = MediaInput(kind=MediaKind.VIDEO, role="reference", frames=frames, fps=1e-9)
    made = prepared(item, MediaPlan(fps=24.0, max_frames=9))
    assert made.frames is not None
    assert len(made.frames) == 9


@pytest.mark.parametrize(
    "broken", [{"source": "a.png"}, {"kind": "image"}, {"start_seconds": -1.0}, {"start_seconds": float("nan")}]
)
def test_references_of_other_types_are_refused_by_their_name(broken):
    whole = {"kind": MediaKind.VIDEO, "role": "reference", "source": b"", "name": "face"}
    with pytest.raises(MediaUnreadable, match=r"^face: has a"):
        media_facts(MediaRef(**{**whole, **broken}), 0)


def test_what_is_no_medium_at_all_is_refused_by_its_place():
    with pytest.raises(MediaUnreadable, match=r"^media\[2\]"):
        media_facts("a.png", 2)  # type: ignore[arg-type]
