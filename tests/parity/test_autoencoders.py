"""Our VAEs against the public ones: the same saved weights, many geometries."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.parity.tolerances import assert_close
from tests.support.tiny_h3 import AUDIO_VAE, VIDEO_VAE, randomised

from omnireel.attention import AttentionBackend, AttentionConfig, select_backend
from omnireel.models.minimax_h3.audio_autoencoder import AudioAutoencoder, AudioVaeConfig, fold_weight_norm
from omnireel.models.minimax_h3.audio_vae import AudioVae
from omnireel.models.minimax_h3.tiling import plan_tiles
from omnireel.models.minimax_h3.video_autoencoder import VideoAutoencoder, VideoVaeConfig, stored_dtype
from omnireel.models.minimax_h3.video_vae import PIXEL_MEAN, PIXEL_STD, VideoVae
from omnireel.weights import load_component, read_index

CPU = torch.device("cpu")
VIDEO_CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": VIDEO_VAE,
    "spec": {
        "latent_channels": 4, "block_out_channels": (8, 16), "layers_per_block": 1, "spatial_downsample_factors": (2, 2),
        "temporal_downsample_factors": (2, 2), "norm_num_groups": 8, "decoder_num_layers": 2,
        "decoder_num_attention_heads": 2, "decoder_attention_head_dim": 8, "decoder_num_register_tokens": 2,
        "decoder_ffn_mult": 2,
    },
    "two resnets, released rope": {
        **VIDEO_VAE, "layers_per_block": 2, "decoder_attention_head_dim": 64, "decoder_num_attention_heads": 1,
    },
}  # fmt: skip
AUDIO_CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": AUDIO_VAE,
    "spec": {
        "encoder_dim": 4, "encoder_rates": (2, 2), "latent_dim": 32, "latent_channels": 8, "num_attention_heads": 2,
        "decoder_dim": 16, "decoder_rates": (2, 2), "decoder_kernel_sizes": (4, 4), "resblock_kernel_sizes": (3, 7),
        "resblock_dilation_sizes": ((1, 3), (1, 3)),
    },
    "odd rates": {**AUDIO_VAE, "encoder_rates": (5, 3), "decoder_rates": (3, 5), "decoder_kernel_sizes": (5, 9)},
}  # fmt: skip


def video_pair(
    folder: Path, config: dict[str, Any], tile: tuple[int, int] | None = None
) -> tuple[Any, VideoAutoencoder]:
    from diffusers import AutoencoderKLMiniMaxH3

    theirs = randomised(AutoencoderKLMiniMaxH3(**config), 5)
    theirs.save_pretrained(folder)
    tile_theirs(theirs, tile)
    return theirs, ours_of(folder, torch.float32, tile)


def tile_theirs(theirs: Any, tile: tuple[int, int] | None) -> None:
    if tile is not None:
        theirs.enable_tiling(
            tile_sample_min_height=tile[0], tile_sample_min_width=tile[0],
            tile_sample_min_overlap_height=tile[1], tile_sample_min_overlap_width=tile[1],
        )  # fmt: skip


def select(role: str, category: str, head_dim: int) -> AttentionBackend:
    return select_backend(
        AttentionConfig(), role=role, category=category, head_dim=head_dim, platform_name="cpu",
        preference=("TORCH_SDPA",),
    )  # fmt: skip


def video_vae(folder: Path) -> VideoVae:
    return VideoVae(folder, device=CPU, is_mixed=False, select=select)


def ours_of(folder: Path, dtype: torch.dtype, tile: tuple[int, int] | None = None) -> VideoAutoencoder:
    files = read_index(folder)
    made = VideoVaeConfig.from_dict(files.config)
    backend = select("vae", "self", made.decoder_attention_head_dim)
    with torch.device("meta"):
        ours = VideoAutoencoder(made, backend=backend, tile=tile)
    load_component(ours, files, device=CPU, dtype_of=lambda name, _: stored_dtype(name, dtype))
    return ours


def moments(theirs: Any, video: torch.Tensor) -> torch.Tensor:
    posterior = theirs.encode(video, return_dict=False)[0]
    return torch.as_tensor(posterior.parameters)


@pytest.mark.parametrize("frames", [1, 5, 17, 22, 30, 39])
@pytest.mark.parametrize("name", VIDEO_CONFIGS)
@torch.inference_mode()
def test_encoded_moments(tmp_path, name, frames):
    theirs, ours = video_pair(tmp_path, VIDEO_CONFIGS[name])
    edge = 2 * ours.config.spatial_ratio
    video = torch.randn(1, 3, frames, edge, edge + ours.config.spatial_ratio)
    assert_close("vae", ours.encode_moments(video), moments(theirs, video))


# Other ways to cut time than the released one, with other padding and strides.
CLIP_CONFIGS: dict[str, dict[str, Any]] = {
    "nothing dropped": {"token_drop": 0},
    "one dropped": {"token_drop": 1, "spatial_padding_mode": "replicate"},
    "whole clips": {"clip_length": 16, "token_drop": 2},
    "half the time": {"clip_length": 9, "token_drop": 2, "temporal_downsample_factors": (1, 2)},
    "time apart from space": {"spatial_downsample_factors": (2, 1), "spatial_padding_mode": "circular"},
}


@pytest.mark.parametrize("name", CLIP_CONFIGS)
@torch.inference_mode()
def test_other_cuts_of_time(tmp_path, name):
    theirs, ours = video_pair(tmp_path, {**VIDEO_CONFIGS["spec"], **CLIP_CONFIGS[name]})
    for latents in range(ours.config.clips.latents_per_clip, 14):
        z = torch.randn(1, 4, latents, 2, 3)
        assert_close("vae", ours.decode(z), theirs.decode(z, return_dict=False)[0])
    edge = 4 * ours.config.spatial_ratio
    for frames in (1, 2, 16, 19):
        video = torch.randn(1, 3, frames, edge, edge)
        assert_close("vae", ours.encode_moments(video), moments(theirs, video))


@torch.inference_mode()
def test_tile_plans_of_every_length(tmp_path):
    theirs, _ = video_pair(tmp_path, VIDEO_VAE)
    for tile, overlap in ((256, 64), (256, 32), (128, 64), (192, 48)):
        for length in range(16, 2300, 16):
            plan = plan_tiles(length, tile=tile, min_overlap=overlap)
            starts, lengths, overlaps = theirs._split_tiles(length, tile, overlap)
            found = (list(plan.starts), [plan.length] * len(plan), list(plan.overlaps))
            assert found == (starts, lengths, overlaps)


@pytest.mark.parametrize("latents", [7, 12, 9, 10, 11, 17])
@pytest.mark.parametrize("name", VIDEO_CONFIGS)
@torch.inference_mode()
def test_decoded_pixels(tmp_path, name, latents):
    theirs, ours = video_pair(tmp_path, VIDEO_CONFIGS[name])
    z = torch.randn(1, 4, latents, 2, 3)
    assert_close("vae", ours.decode(z), theirs.decode(z, return_dict=False)[0])


# Tile and least overlap, then height and width, all in latents.
GEOMETRIES = [
    (tile, overlap, height, width)
    for tile, overlap in ((4, 1), (3, 1), (5, 2), (4, 2))
    for height, width in ((4, 9), (5, 5), (7, 3), (10, 6), (6, 11), (12, 13), (2, 2), (9, 8))
]


@pytest.mark.parametrize("geometry", GEOMETRIES)
@torch.inference_mode()
def test_tiles(tmp_path, geometry):
    tile, overlap, height, width = geometry
    config = VIDEO_CONFIGS["spec"]
    theirs, ours = video_pair(tmp_path, config, (4 * tile, 4 * overlap))
    z = torch.randn(1, 4, 7, height, width)
    assert_close("vae", ours.decode(z), theirs.decode(z, return_dict=False)[0])
    video = torch.randn(1, 3, 5, 4 * height, 4 * width)
    assert_close("vae", ours.encode_moments(video), moments(theirs, video))


@torch.inference_mode()
def test_tiles_in_batches_are_tiles_one_by_one(tmp_path):
    _, ours = video_pair(tmp_path, VIDEO_CONFIGS["spec"], (16, 4))
    z = torch.randn(1, 4, 7, 9, 10)
    for size in (2, 3, 100):
        assert (ours.decode(z, tile_batch=size) - ours.decode(z)).abs().max() < 1e-5
        video = torch.randn(1, 3, 17, 36, 40)
        assert (ours.encode_moments(video, tile_batch=size) - ours.encode_moments(video)).abs().max() < 1e-5


@pytest.mark.parametrize("tile", [None, (64, 16)])
@torch.inference_mode()
def test_the_mixed_layout_is_the_references_bfloat16_load(tmp_path, tile):
    from diffusers import AutoencoderKLMiniMaxH3

    video_pair(tmp_path, VIDEO_VAE)
    theirs = AutoencoderKLMiniMaxH3.from_pretrained(tmp_path, torch_dtype=torch.bfloat16).eval()
    tile_theirs(theirs, tile)
    ours = ours_of(tmp_path, torch.bfloat16, tile)
    types = {name: tensor.dtype for name, tensor in theirs.state_dict().items()}
    assert {name: tensor.dtype for name, tensor in ours.state_dict().items()} == types
    for latents in (7, 12, 9):
        z = torch.randn(1, 4, latents, 5, 9)
        assert_close("vae_mixed", ours.decode(z), theirs.decode(z, return_dict=False)[0])
    video = torch.randn(1, 3, 18, 80, 144)
    assert_close("vae_mixed", ours.encode_moments(video), moments(theirs, video))


@pytest.mark.parametrize("frames", [1, 22, 30])
@torch.inference_mode()
def test_conditions_are_drawn_and_rounded_as_the_references(tmp_path, frames):
    from diffusers.modular_pipelines.minimax_h3.encoders import encode_vae_condition

    theirs, _ = video_pair(tmp_path, VIDEO_VAE)
    levels = torch.randint(0, 256, (frames, 48, 64, 3), dtype=torch.uint8)
    pixels = levels.permute(3, 0, 1, 2)[None]
    expected = encode_vae_condition(theirs, pixels, PIXEL_MEAN, PIXEL_STD)
    assert_close("vae", video_vae(tmp_path).encode(levels.numpy()), expected)


@pytest.mark.parametrize("latents", [7, 12, 10])
@torch.inference_mode()
def test_frames_are_the_references_bytes(tmp_path, latents):
    theirs, _ = video_pair(tmp_path, VIDEO_VAE)
    z = torch.randn(1, 4, latents, 2, 3)
    mean, std = (torch.tensor(VIDEO_VAE[key]).view(1, -1, 1, 1, 1) for key in ("latents_mean", "latents_std"))
    pixels = theirs.decode(z * std + mean, return_dict=False)[0][0].permute(1, 2, 3, 0)
    unit = (pixels * torch.tensor(PIXEL_STD) + torch.tensor(PIXEL_MEAN)).clamp(0, 1)
    frames = torch.from_numpy(video_vae(tmp_path).decode(z))
    assert_close("loop_frames", frames / 255, (unit * 255).round() / 255)


def audio_pair(folder: Path, config: dict[str, Any]) -> tuple[Any, AudioAutoencoder]:
    from diffusers import AutoencoderKLMiniMaxH3Audio

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        theirs = randomised(AutoencoderKLMiniMaxH3Audio(**config), 6, scale=0.5)
    theirs.save_pretrained(folder)
    files = read_index(folder)
    with torch.device("meta"):
        ours = AudioAutoencoder(AudioVaeConfig.from_dict(files.config))
    load_component(ours, files, device=CPU)
    return theirs, ours


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("name", AUDIO_CONFIGS)
@torch.inference_mode()
def test_sound(tmp_path, name, is_folded):
    theirs, ours = audio_pair(tmp_path, AUDIO_CONFIGS[name])
    if is_folded:
        fold_weight_norm(ours)
    wave = torch.randn(2, 20 * ours.config.hop + 7) * 0.3
    expected = theirs.encode(wave[:, None], return_dict=False)[0].mode()
    assert_close("audio_vae", ours.encode(wave), expected)
    z = torch.randn(2, 8, 21)
    assert_close("audio_vae", ours.decode(z), theirs.decode(z, return_dict=False)[0][:, 0])


@torch.inference_mode()
def test_recordings_and_their_latents_are_the_references(tmp_path):
    theirs, _ = audio_pair(tmp_path, AUDIO_VAE)
    ours = AudioVae(tmp_path, device=CPU)
    mean, std = (torch.tensor(AUDIO_VAE[key]).view(1, -1, 1) for key in ("latents_mean", "latents_std"))
    wave = 0.3 * torch.randn(2, 16_001)
    expected = (theirs.encode(wave[:, None], return_dict=False)[0].mode() - mean) / std
    assert_close("audio_vae", ours.encode(wave), expected)
    z = torch.randn(2, 8, 21)
    heard = theirs.decode(z * std + mean, return_dict=False)[0][:, 0]
    assert_close("audio_vae", torch.from_numpy(ours.decode(z)), heard)
