"""Cuts over space and time, against the published figures."""

from __future__ import annotations

import pytest

from omnireel.models.minimax_h3.tiling import ClipRules, Job, TileRules, plan_decode, plan_encode, plan_tiles

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


TILES = TileRules(ratio=16)


def test_jobs_go_clip_by_clip_and_row_by_row():
    plan = plan_decode(RELEASED, TILES, 12, 20, 16)
    assert plan.jobs == (Job(0, 0, 0), Job(0, 1, 0), Job(1, 0, 0), Job(1, 1, 0))
    assert plan.tiles_per_clip == 2


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_shares_of_the_work_differ_by_one_tile_at_most(num_ranks):
    jobs = plan_decode(RELEASED, TILES, 62, 48, 84).jobs
    shares = [jobs[rank::num_ranks] for rank in range(num_ranks)]
    assert sorted(job for share in shares for job in share) == list(jobs)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("frames", "clips", "extent"), [(1, 1, 1), (2, 1, 17), (17, 1, 17), (18, 2, 17), (124, 8, 17)])
def test_a_single_frame_is_not_made_a_clip_of(frames, clips, extent):
    plan = plan_encode(RELEASED, TILES, frames, 768, 1344, is_trimmed=True)
    assert (plan.num_clips, plan.extent) == (clips, extent)
    assert plan_encode(RELEASED, TILES, frames, 768, 1344).last_extent == extent
    # Five frames make the two latents that are kept of the last clip.
    last = plan.extent_of(plan.jobs[-1])
    assert last == (1 if frames == 1 else 5)
    assert plan.extent_of(plan.jobs[0]) == (last if clips == 1 else extent)


def test_what_is_cut_and_what_is_made_lie_on_each_other():
    decode, encode = plan_decode(RELEASED, TILES, 7, 48, 84), plan_encode(RELEASED, TILES, 22, 768, 1344)
    assert (decode.source, decode.made) == (encode.made, encode.source)
    assert decode.source[0].starts == (0, 10, 21, 32)


@pytest.mark.parametrize("latents", range(1, 63))
def test_every_clip_begins_within_the_latents(latents):
    plan = plan_decode(RELEASED, TILES, latents, 2, 2)
    assert (plan.num_clips - 1) * plan.step < latents <= plan.num_clips * plan.step + RELEASED.overlap_latents
