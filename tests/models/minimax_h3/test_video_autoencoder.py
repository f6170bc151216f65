"""The video VAE by itself: what it computes when, how its work is spread, what surrounds a convolution."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.support.mini import MINI

from omnireel.attention import AttentionConfig, select_backend
from omnireel.models.minimax_h3.blending import stitch_clips
from omnireel.models.minimax_h3.tiling import Job
from omnireel.models.minimax_h3.video_autoencoder import (
    MARGINS,
    CausalConv3d,
    VideoAutoencoder,
    VideoVaeConfig,
)
from omnireel.weights import load_component, read_index

TILE = (64, 16)
"""Edge and overlap in pixels: 4 and 1 latents."""


def unfilled(tile: tuple[int, int] | None = None) -> VideoAutoencoder:
    config = VideoVaeConfig.from_dict(read_index(MINI / "vae").config)
    backend = select_backend(
        AttentionConfig(), role="vae", category="self", head_dim=config.decoder_attention_head_dim, platform_name="cpu",
        preference=("TORCH_SDPA",),
    )  # fmt: skip
    return VideoAutoencoder(config, backend=backend, tile=tile)


@pytest.fixture(scope="module")
def vae():
    made = unfilled(TILE)
    load_component(made, read_index(MINI / "vae"), device=torch.device("cpu"), dtype_of=lambda _, __: torch.float32)
    return made


@pytest.fixture
def sizes(vae):
    """Tiles of each call of the decoder, in the order of the calls."""
    seen: list[int] = []
    hook = vae.decoder.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    yield seen
    hook.remove()


@pytest.mark.parametrize("default", ["cpu", "meta"])
def test_it_is_made_on_the_meta_device_whatever_the_default_device(default):
    with torch.device(default):
        made = unfilled()
    assert {tensor.device.type for tensor in (*made.parameters(), *made.buffers())} == {"meta"}


@torch.inference_mode()
def test_pieces_come_clip_by_clip_and_only_then_are_computed(vae, sizes):
    pieces = vae.decode_clips(torch.randn(1, 24, 12, 4, 7))
    lengths = []
    calls = []
    for piece in pieces:
        lengths.append(piece.shape[2])
        calls.append(len(sizes))
    assert lengths == [17, 17, 5]
    assert calls == [2, 4, 4]


@torch.inference_mode()
def test_a_batch_takes_tiles_of_several_clips(vae, sizes):
    latents = torch.randn(1, 24, 17, 4, 7)
    whole = vae.decode(latents, tile_batch=4)
    assert sizes == [4, 2]
    assert (whole - vae.decode(latents)).abs().max() < 1e-5


@torch.inference_mode()
@pytest.mark.parametrize("num_ranks", [2, 3, 50])
def test_tiles_spread_over_ranks_make_the_same_bits(vae, num_ranks):
    latents = torch.randn(1, 24, 9, 6, 7)
    plan = vae.decode_plan(*latents.shape[2:])
    tiles: dict[Job, torch.Tensor] = {}
    for rank in range(num_ranks):
        mine = plan.jobs[rank::num_ranks]
        tiles.update(zip(mine, vae.decode_tiles(latents, plan, mine), strict=True))
    clips = stitch_clips((tiles[job] for job in plan.jobs), plan)
    joined = torch.cat(list(vae.join_clips(clips, latents.shape[2])), dim=2)
    assert torch.equal(joined, vae.decode(latents))


@torch.inference_mode()
def test_encoding_spread_over_ranks_makes_the_same_bits(vae):
    video = torch.randn(1, 3, 18, 32, 80)
    plan = vae.encode_plan(*video.shape[2:])
    halves = [list(vae.encode_tiles(video, plan, plan.jobs[rank::2])) for rank in range(2)]
    tiles = (halves[k % 2][k // 2] for k in range(len(plan.jobs)))
    moments = torch.cat(list(stitch_clips(tiles, plan)), dim=2)
    assert torch.equal(moments[:, :, :-3], vae.encode_moments(video))


@torch.inference_mode()
@pytest.mark.parametrize("tile_batch", [1, 3])
def test_bytes_become_pixels_tile_by_tile(vae, tile_batch):
    levels = torch.randint(0, 256, (1, 3, 20, 32, 80), dtype=torch.uint8)
    sizes: list[torch.Size] = []

    def prepare(tiles: torch.Tensor) -> torch.Tensor:
        sizes.append(tiles.shape)
        return tiles.float().div(255)

    moments = vae.encode_moments(levels, tile_batch=tile_batch, prepare=prepare)
    assert torch.equal(moments, vae.encode_moments(levels.float().div(255), tile_batch=tile_batch))
    assert [size[0] for size in sizes] == {1: [1, 1, 1, 1], 3: [3, 1]}[tile_batch]
    assert {size[1:] for size in sizes} == {(3, 17, 32, 64)}


@torch.inference_mode()
@pytest.mark.parametrize("frames", [2, 5, 6, 17, 22, 30])
def test_a_trimmed_clip_is_encoded_as_far_as_latents_are_kept(vae, frames):
    video = torch.randn(1, 3, frames, 32, 32, generator=torch.Generator().manual_seed(frames))
    seen: list[int] = []

    def prepare(tiles: torch.Tensor) -> torch.Tensor:
        seen.append(tiles.shape[2])
        return tiles

    made = vae.encode_moments(video, is_trimmed=True, prepare=prepare)
    assert seen == [17] * ((frames - 1) // 17) + [5]
    torch.testing.assert_close(made, vae.encode_moments(video), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("num_latents", range(1, 9))
def test_any_number_of_latents_is_decoded(vae, num_latents):
    pixels = vae.decode(torch.randn(1, 24, num_latents, 2, 2))
    assert pixels.shape == (1, 3, vae.config.clips.frames_of(num_latents), 32, 32)
    assert pixels.isfinite().all()


@torch.inference_mode()
def test_items_of_a_batch_do_not_mix(vae):
    latents = torch.randn(2, 24, 7, 4, 7)
    both = vae.decode(latents, tile_batch=2)
    video = torch.randn(2, 3, 2, 32, 80)
    moments = vae.encode_moments(video, tile_batch=2)
    for k in range(2):
        assert (both[k : k + 1] - vae.decode(latents[k : k + 1])).abs().max() < 1e-5
        assert (moments[k : k + 1] - vae.encode_moments(video[k : k + 1])).abs().max() < 1e-5


@torch.inference_mode()
def test_what_is_given_is_left_as_it_was(vae):
    latents, video = torch.randn(1, 24, 12, 2, 2), torch.randn(1, 3, 20, 32, 32)
    before = latents.clone(), video.clone()
    vae.decode(latents)
    vae.encode_moments(video)
    assert torch.equal(latents, before[0])
    assert torch.equal(video, before[1])


@torch.inference_mode()
def test_narrow_pixels_are_encoded_in_float32(vae):
    video = torch.randn(1, 3, 1, 32, 32).bfloat16()
    assert torch.equal(vae.encode_moments(video), vae.encode_moments(video.float()))


@pytest.mark.parametrize("margins", [(1, 1), (0, 1), (1, 0), (0, 0)])
@pytest.mark.parametrize("mode", MARGINS)
def test_margins_hold_what_torch_pads_with(mode, margins):
    convolution = CausalConv3d(3, 2, size=3, margins=margins, mode=mode)
    x = torch.randn(2, 3, 4, 5, 6)
    before, after = margins
    around = (before, after, before, after, 0, 0)
    space = F.pad(x, around) if mode == "constant" else F.pad(x, around, mode=mode)
    assert torch.equal(convolution._padded(x), F.pad(space, (0, 0, 0, 0, 2, 0)))


def test_a_single_pixel_is_not_mirrored():
    convolution = CausalConv3d(3, 2, size=3, margins=(1, 1), mode="reflect")
    with pytest.raises(ValueError, match="single pixel"):
        convolution(torch.randn(1, 3, 1, 4, 1))


@pytest.mark.parametrize(
    ("change", "named"),
    [({"decoder_rope_dim_ratio": 0.7}, "decoder_rope_dim_ratio"), ({"token_drop": 5}, "token_drop")],
)
def test_sizes_that_no_vae_has_are_refused(change, named):
    with pytest.raises(ValueError, match=named):
        VideoVaeConfig.from_dict({**read_index(MINI / "vae").config, **change})


def test_the_released_sizes_are_the_defaults():
    config = VideoVaeConfig()
    assert (config.spatial_ratio, config.clips.ratio) == (16, 4)
    plan = unfilled().decode_plan(62, 48, 84)
    assert len(plan.jobs) == 336
    assert math.prod((plan.extent, plan.source[0].length, plan.source[1].length)) == 7 * 16 * 16


@torch.inference_mode()
def test_channels_innermost_give_the_same_values_and_are_padded_so():
    convolution = CausalConv3d(3, 8, size=3, margins=(1, 1))
    x = torch.randn(1, 3, 5, 8, 8)
    expected = convolution(x)
    convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last_3d)
    made = convolution(x)
    torch.testing.assert_close(made, expected)
    assert convolution._padded(x).is_contiguous(memory_format=torch.channels_last_3d)
