"""Cuts over space and time, against the published figures."""

from __future__ import annotations

import pytest

from omnireel.models.minimax_h3.tiling import ClipRules, plan_tiles

RELEASED = ClipRules(clip_length=17, token_drop=3, ratio=4)


@pytest.mark.parametrize(
    ("length", "starts"),
    [
        (96, (0,)),
        (256, (0,)),
        (768, (0, 160, 336, 512)),
        (1344, (0, 176, 352, 528, 704, 896, 1088)),
        (1024, (0, 192, 384, 576, 768)),
    ],
)
def test_tiles_start_where_the_published_ones_do(length, starts):
    assert plan_tiles(length).starts == starts


def test_a_reference_picture_takes_eleven_tiles():
    assert len(plan_tiles(2048)) == 11


@pytest.mark.parametrize("length", range(32, 2100, 32))
def test_tiles_cover_everything_with_enough_overlap(length):
    plan = plan_tiles(length)
    assert plan.starts[-1] + plan.length == length
    assert all(overlap >= 64 and overlap % 16 == 0 for overlap in plan.overlaps)
    pairs = zip(plan.starts, plan.starts[1:], plan.overlaps, strict=False)
    assert all(start + plan.length - overlap == following for start, following, overlap in pairs)


def test_a_plan_in_latents_is_the_same_plan():
    assert plan_tiles(768).scaled(16).starts == (0, 10, 21, 32)


@pytest.mark.parametrize("n", range(1, 25))
def test_whole_clips_and_their_latents(n):
    latents = 5 * n + 2
    assert RELEASED.frames_of(latents) == 17 * n + 5
    assert RELEASED.clips_of(latents) == n
    assert RELEASED.latents_needed(latents) == latents


@pytest.mark.parametrize(("latents", "clips", "needed"), [(3, 1, 7), (7, 1, 7), (8, 2, 12), (11, 2, 12), (13, 3, 17)])
def test_what_is_missing_from_the_last_clip_is_filled_up(latents, clips, needed):
    assert (RELEASED.clips_of(latents), RELEASED.latents_needed(latents)) == (clips, needed)


def test_clips_overlap_as_published():
    rules = RELEASED
    assert (rules.latents_per_clip, rules.lead, rules.overlap_latents, rules.overlap_frames) == (5, 3, 2, 5)


def test_a_released_clip_takes_336_decoder_calls():
    tiles = len(plan_tiles(768)) * len(plan_tiles(1344))
    assert tiles * RELEASED.clips_of(62) == 336
