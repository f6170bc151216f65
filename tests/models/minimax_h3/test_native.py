"""Configs of native checkpoints: the published spellings are read, and what cannot be computed is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from omnireel.errors import BadCheckpoint
from omnireel.models.minimax_h3.native import audio_vae_files, video_vae_files
from omnireel.models.minimax_h3.video_autoencoder import VideoVaeConfig

STATISTICS = {"latents_mean": [0.5] * 24, "latents_std": [2.0] * 24}
WRAPPER: dict[str, Any] = {
    "_class_name": "MiniMaxH3VideoVAE", "latent_channels": 24, "source_path": "source", "vae_clip_length": 17,
    "vae_token_drop": 3, "vae_encoder_tiling": 1, "vae_decoder_tiling": 1, "vae_parallel_tiling": 1, "vae_tile_size": 256,
    "vae_tile_overlap_min": 64, "vae_chunk_dim": 2, **STATISTICS,
}  # fmt: skip
DECODER: dict[str, Any] = {
    "dim_head": 64, "ffn_activation_fn": "silu", "ffn_use_gated": True, "heads": 32, "norm_affine": True,
    "norm_type": "rms_norm", "num_layers": 36, "qk_norm_affine": False, "qk_norm_type": "rms_norm", "rope_dim_ratio": 0.75,
    "rope_theta": 100.0,
}  # fmt: skip
SOURCE: dict[str, Any] = {
    "ch": 128, "ch_mult": [1, 2, 2, 4, 4, 8], "embed_dim": 24, "z_channels": 24, "num_res_blocks": 2,
    "space_down": [2, 2, 2, 2, 1, 1], "time_down": [1, 2, 2, 1, 1, 1], "padding_mode": "reflect", "causal_encoder": True,
    "causal_decoder": False, "use_t_isolated_gn": True, "use_vit_decoder": True, "pixel_norm_type": "imagenet",
    "vit_decoder_kwargs": DECODER,
}  # fmt: skip
"""As the published file has them."""


def video_vae(root: Path, wrapper: Any = WRAPPER, source: Any = SOURCE) -> VideoVaeConfig:
    (root / "source").mkdir()
    (root / "config.json").write_text(json.dumps(wrapper))
    (root / "source" / "config.json").write_text(json.dumps(source))
    save_file({"x": torch.zeros(1)}, root / "source" / "model.safetensors")
    return VideoVaeConfig.from_dict(video_vae_files(root)[1])


def audio_vae(root: Path, metadata: Any) -> Any:
    (root / "config.json").write_text(json.dumps({"latent_channels": 32, "sample_rate": 32_000}))
    (root / "metadata.json").write_text(json.dumps(metadata))
    save_file({"x": torch.zeros(1)}, root / "model.safetensors")
    return audio_vae_files(root)[1]


def test_the_published_video_config_is_the_released_model(tmp_path):
    assert video_vae(tmp_path) == VideoVaeConfig(latents_mean=(0.5,) * 24, latents_std=(2.0,) * 24)


def test_other_sizes_are_taken(tmp_path):
    source = {**SOURCE, "ch": 64, "vit_decoder_kwargs": {**DECODER, "num_layers": 3, "heads": 4}}
    found = video_vae(tmp_path, source=source)
    assert found.block_out_channels == (64, 128, 128, 256, 256, 512)
    assert (found.decoder_num_layers, found.decoder_num_attention_heads) == (3, 4)


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("wrapper", "vae_tile_size", 512),
        ("wrapper", "vae_tile_overlap_min", 32),
        ("wrapper", "vae_decoder_tiling", 0),
        ("source", "use_vit_decoder", False),
        ("source", "pixel_norm_type", "none"),
        ("decoder", "ffn_activation_fn", "gelu"),
        ("decoder", "qk_norm_affine", True),
    ],
)
def test_a_function_that_is_not_computed_is_refused(tmp_path, place, key, value):
    decoder = {**DECODER, key: value} if place == "decoder" else DECODER
    source = {**SOURCE, "vit_decoder_kwargs": decoder} | ({key: value} if place == "source" else {})
    wrapper = {**WRAPPER, key: value} if place == "wrapper" else WRAPPER
    with pytest.raises(BadCheckpoint, match=key):
        video_vae(tmp_path, wrapper, source)


@pytest.mark.parametrize("change", [{"vit_decoder_kwargs": [1]}, {"space_down": 2}, {"ch": "wide"}, {"ch_mult": None}])
def test_a_video_config_of_another_shape_is_told(tmp_path, change):
    with pytest.raises(BadCheckpoint, match="cannot be understood"):
        video_vae(tmp_path, source=SOURCE | change)


def test_sound_kernels_follow_from_the_rates(tmp_path):
    kwargs = {"decoder_rates": [5, 5, 2, 2], "attn_proj": True, "decoder_type": "bigvgan", "vae_latent_channels": 16}
    found = audio_vae(tmp_path, {"metadata": {"kwargs": kwargs}})
    assert found["decoder_kernel_sizes"] == [9, 9, 4, 4]
    assert (found["latent_channels"], found["sampling_rate"]) == (16, 32_000)


@pytest.mark.parametrize("kwargs", [{"decoder_type": "dac"}, {"attn_proj": False}])
def test_another_kind_of_sound_vae_is_refused(tmp_path, kwargs):
    with pytest.raises(BadCheckpoint, match=next(iter(kwargs))):
        audio_vae(tmp_path, {"metadata": {"kwargs": kwargs}})


@pytest.mark.parametrize("metadata", [{"metadata": [1]}, {"metadata": {"kwargs": 5}}])
def test_sound_metadata_of_another_shape_is_told(tmp_path, metadata):
    with pytest.raises(BadCheckpoint, match="cannot be understood"):
        audio_vae(tmp_path, metadata)
