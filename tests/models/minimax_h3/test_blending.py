"""How neighbours go over into each other."""

from __future__ import annotations

import pytest
import torch

from omnireel.models.minimax_h3.blending import fade_, stitch, stitch_clips
from omnireel.models.minimax_h3.tiling import ClipRules, TilePlan, TileRules, plan_decode


def test_tiles_are_blended_with_neighbours_as_they_were_decoded():
    """Against the sum written out: down first, then across, each from raw neighbours."""
    plan = TilePlan(starts=(0, 2), length=4, overlaps=(2,))
    tiles = list(torch.randn(4, 1, 4, 4).unbind())
    raw = [tile.clone() for tile in tiles]
    made = stitch(tiles, plan, plan)

    def down(j: int, y: int, x: int) -> torch.Tensor:
        return raw[j][0, 2 + y, x] * (1 - y / 2) + raw[2 + j][0, y, x] * (y / 2)

    for y in range(2):
        for x in range(2):
            expected = raw[2][0, y, 2 + x] * (1 - x / 2) + down(1, y, x) * (x / 2)
            assert made[0, 2 + y, 2 + x] == expected
    assert torch.equal(made[0, :2, :2], raw[0][0, :2, :2])
    assert torch.equal(made[0, 4:, 4:], raw[3][0, 2:, 2:])
    assert all(torch.equal(tile, kept) for tile, kept in zip(tiles, raw, strict=True))


def test_a_fade_begins_with_the_old_and_ends_short_of_the_new():
    after, before = torch.ones(1, 8), torch.zeros(1, 6)
    fade_(after, before, 4, dim=1)
    assert after.tolist() == [[0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]]


def test_a_fade_that_is_cut_off_keeps_its_slope():
    after, before = torch.ones(1, 2), torch.zeros(1, 6)
    fade_(after, before, 4, dim=1)
    assert after.tolist() == [[0.0, 0.25]]


@pytest.mark.parametrize("extent", [5, 7])
def test_a_fade_is_no_longer_than_what_it_comes_from(extent):
    after, before = torch.ones(1, 8), torch.zeros(1, 5)
    fade_(after, before, extent, dim=1)
    assert after.tolist() == [[0.0, *(torch.arange(1, 5) / 5).tolist(), 1.0, 1.0, 1.0]]


def test_a_clip_is_stitched_when_its_last_tile_is_there():
    plan = plan_decode(
        ClipRules(clip_length=17, token_drop=3, ratio=4), TileRules(ratio=1, edge=4, min_overlap=1), 12, 4, 7
    )
    assert (plan.num_clips, plan.tiles_per_clip) == (2, 2)
    given = 0

    def tiles():
        nonlocal given
        for _ in plan.jobs:
            given += 1
            yield torch.zeros(1, 1, 1, 4, 4)

    seen = [(given, clip.shape[-2:]) for clip in stitch_clips(tiles(), plan)]
    assert seen == [(2, (4, 7)), (4, (4, 7))]
