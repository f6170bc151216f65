"""A checkpoint's limits, and the geometry that follows from them."""

from __future__ import annotations

import json

import pytest

from omnireel.errors import BadCheckpoint
from omnireel.models.minimax_h3 import limits as geometry
from omnireel.models.minimax_h3.facts import FACTS
from omnireel.models.minimax_h3.limits import Limits
from omnireel.models.protocol import Checkpoint


def limits_of(index, path=None):
    return Limits.of(Checkpoint(name="x", facts=FACTS, path=path, index=index))


def test_a_silent_index_means_the_released_model():
    assert limits_of({}) == Limits()


def test_an_index_may_declare_its_own():
    found = limits_of({"canvas_short_edge": 128, "_omnireel": {"condition_layer": 2}})
    assert (found.canvas_short_edge, found.condition_layer, found.default_num_frames) == (128, 2, 209)


@pytest.mark.parametrize("value", [0, -1, 1.5, "50", True, None, 10**400])
def test_a_value_that_is_no_count_is_refused(value):
    with pytest.raises(BadCheckpoint, match="condition_layer"):
        limits_of({"_omnireel": {"condition_layer": value}})


def test_an_unknown_extension_is_refused():
    with pytest.raises(BadCheckpoint, match=r"_omnireel\.layer"):
        limits_of({"_omnireel": {"layer": 2}})


@pytest.mark.parametrize("block", [None, 3, "x", [1]])
def test_an_extension_that_is_no_object_is_refused(block):
    with pytest.raises(BadCheckpoint, match="_omnireel"):
        limits_of({"_omnireel": block})


def test_shifts_come_from_the_scheduler_folders(tmp_path):
    (tmp_path / "transformer").mkdir()
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps({"shift": 6}))
    assert limits_of({}, tmp_path).shifts == {"video": 6.0, "audio": 3.0}


@pytest.mark.parametrize("shift", ["12", 0, -1, None])
def test_a_shift_that_is_none_is_refused(tmp_path, shift):
    (tmp_path / "transformer").mkdir()
    (tmp_path / "audio_scheduler").mkdir()
    (tmp_path / "audio_scheduler" / "scheduler_config.json").write_text(json.dumps({"shift": shift}))
    with pytest.raises(BadCheckpoint, match="audio_scheduler"):
        limits_of({}, tmp_path)


def test_each_partition_has_schedules_of_its_own(tmp_path):
    for name, task, shift in (("FL2VA", "t2va", 6.0), ("Ref2VA", "ref2va", 9.0)):
        (tmp_path / name).mkdir()
        block = {"sigma_shift_scales": {"video": shift}, "base_schedule": [1, shift / 10, 0], "tasks": [task]}
        (tmp_path / name / "model_index.json").write_text(json.dumps({"_minimax_h3": block}))
    checkpoint = Checkpoint(name="x", facts=FACTS, path=tmp_path, index={}, task_type="combined")
    for task, shift in (("t2va", 6.0), ("ref2va", 9.0)):
        found = Limits.of(checkpoint, task)
        assert found.shifts == {"video": shift, "audio": 3.0}
        assert found.base_schedule == (1.0, shift / 10, 0.0)


def test_shifts_that_are_no_object_are_refused(tmp_path):
    (tmp_path / "FL2VA").mkdir()
    index = {"_minimax_h3": {"sigma_shift_scales": [12, 3]}}
    (tmp_path / "FL2VA" / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(BadCheckpoint, match="sigma_shift_scales"):
        Limits.of(Checkpoint(name="x", facts=FACTS, path=tmp_path, task_type="t2va"))


@pytest.mark.parametrize(
    ("ratio", "size"),
    [
        ("21:9", (672, 1536)),
        ("16:9", (768, 1344)),
        ("4:3", (768, 1024)),
        ("1:1", (768, 768)),
        ("3:4", (1024, 768)),
        ("9:16", (1344, 768)),
    ],
)
def test_released_canvases(ratio, size):
    assert geometry.canvas(*geometry.ASPECT_RATIOS[ratio], Limits()) == size


@pytest.mark.parametrize(
    ("asked", "made"), [(1, 5), (5, 5), (6, 22), (96, 107), (107, 107), (108, 124), (209, 209), (360, 362)]
)
def test_frames_are_raised_to_what_the_vae_decodes(asked, made):
    assert geometry.aligned_frames(asked) == made


@pytest.mark.parametrize(
    ("height", "width", "frames", "rows"),
    [
        (768, 1344, 107, 32_256 + 356),
        (768, 1344, 209, 62_496 + 696),
        (768, 1344, 345, 102_816 + 1_150),
        (384, 672, 209, 15_624 + 696),
    ],
)
def test_rows_are_those_of_the_published_table(height, width, frames, rows):
    assert geometry.packed_rows(height, width, frames) == rows
