"""Sizes and patches of what the text encoder sees."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from omnireel.errors import BadCheckpoint
from omnireel.models.minimax_h3.vision import (
    CLIP_RULES,
    PICTURE_RULES,
    PatchRules,
    clip_patches,
    fitted_size,
    picture_patches,
)
from omnireel.request import MediaInput, MediaKind


@pytest.mark.parametrize(
    ("size", "num_frames", "fitted"),
    [
        ((768, 1344), 1, (768, 1344)),
        ((10, 320), 1, (64, 1472)),
        ((100, 100), 1, (256, 256)),
        ((8000, 8000), 1, (4096, 4096)),
        ((768, 1344), 30, (672, 1184)),
    ],
)
def test_sizes_lie_within_the_bounds_in_multiples_of_32(size, num_frames, fitted):
    rules = PICTURE_RULES if num_frames == 1 else CLIP_RULES
    made = fitted_size(size[0], size[1], num_frames, rules)
    assert made == fitted
    assert rules.min_pixels <= made[0] * made[1] * num_frames <= rules.max_pixels


def test_a_picture_is_read_as_a_pair_of_itself():
    item = MediaInput(kind=MediaKind.IMAGE, role="reference", frames=np.full((1, 256, 256, 3), 255, np.uint8))
    patches = picture_patches((item,), PICTURE_RULES)
    assert patches is not None
    assert patches.grids.tolist() == [[1, 16, 16]]
    assert patches.patches.shape == (256, 3 * 2 * 16 * 16)
    assert patches.patches.unique().tolist() == [1.0]
    assert patches.tokens(0) == 64


def test_an_odd_last_frame_pairs_with_itself():
    frames = np.zeros((25, 64, 64, 3), np.uint8)
    frames[24] = 255
    item = MediaInput(kind=MediaKind.VIDEO, role="reference", frames=frames, fps=24.0)
    patches = clip_patches((item,), CLIP_RULES)
    assert patches is not None
    pairs, rows, columns = patches.grids[0].tolist()
    last = patches.patches.reshape(pairs, rows * columns, -1)[-1]
    assert pairs == 2
    assert last.unique().tolist() == [1.0]


def test_nothing_to_see_is_none():
    assert picture_patches((), PICTURE_RULES) is None


def test_a_checkpoint_may_say_otherwise(tmp_path):
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"size": {"shortest_edge": 1024, "longest_edge": 4096}, "image_mean": [0, 0, 0]}))
    rules = PatchRules.read(file, PICTURE_RULES)
    assert (rules.min_pixels, rules.max_pixels, rules.mean, rules.std) == (
        1024,
        4096,
        (0.0, 0.0, 0.0),
        PICTURE_RULES.std,
    )


def test_a_checkpoint_that_says_nonsense_is_refused(tmp_path):
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"patch_size": "big"}))
    with pytest.raises(BadCheckpoint, match="preprocessor_config"):
        PatchRules.read(file, PICTURE_RULES)


@pytest.mark.parametrize(
    "said",
    [
        {"size": 5}, {"size": [1]}, {"size": {"shortest_edge": math.inf}}, {"patch_size": 0}, {"merge_size": 0},
        {"min_pixels": -1}, {"min_pixels": 9, "max_pixels": 8}, {"image_mean": [0.5]}, {"image_std": [0, 0, 0]},
        {"image_mean": [math.nan, 0, 0]},
    ],
)  # fmt: skip
def test_rules_that_no_picture_can_follow_are_refused(tmp_path, said):
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(said))
    with pytest.raises(BadCheckpoint, match=r"processor/preprocessor_config\.json"):
        PatchRules.read(file, PICTURE_RULES)
