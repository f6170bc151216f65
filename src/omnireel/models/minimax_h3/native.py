"""Configs of native checkpoints, translated to the diffusers names that our modules are built from.

Sizes that a native file does not tell are the released ones; the weights' own shapes are checked against all of them when
they are loaded, so a wrong guess is an error and never another model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omnireel.errors import BadCheckpoint
from omnireel.models.minimax_h3.tiling import MIN_OVERLAP_PIXELS, TILE_PIXELS
from omnireel.weights import ComponentFiles, read_index, read_json

_DECODER_NAMES: Mapping[str, str] = {
    "decoder_num_layers": "num_layers",
    "decoder_num_attention_heads": "heads",
    "decoder_attention_head_dim": "dim_head",
    "decoder_num_register_tokens": "num_register_tokens",
    "decoder_ffn_mult": "ffn_mult",
    "decoder_rope_theta": "rope_theta",
    "decoder_rope_dim_ratio": "rope_dim_ratio",
}
# What is computed here, where a file may say that something else was trained and no shape would tell.
_WRAPPER_FIXED: Mapping[str, Any] = {
    "vae_encoder_tiling": True, "vae_decoder_tiling": True,
    "vae_tile_size": TILE_PIXELS, "vae_tile_overlap_min": MIN_OVERLAP_PIXELS,
}  # fmt: skip
_SOURCE_FIXED: Mapping[str, Any] = {
    "use_vit_decoder": True, "causal_encoder": True, "causal_decoder": False, "use_t_isolated_gn": True,
    "pixel_norm_type": "imagenet",
}  # fmt: skip
_DECODER_FIXED: Mapping[str, Any] = {
    "norm_type": "rms_norm", "qk_norm_type": "rms_norm", "qk_norm_affine": False, "ffn_activation_fn": "silu",
    "ffn_use_gated": True,
}  # fmt: skip
_AUDIO_FIXED: Mapping[str, Any] = {"attn_proj": True, "decoder_type": "bigvgan"}


def video_vae_files(folder: Path) -> tuple[ComponentFiles, Mapping[str, Any]]:
    """The weights of a video VAE and its config by diffusers names; natively the weights lie one folder down, in `source`."""
    if not (folder / "source").is_dir():
        files = read_index(folder)
        return files, files.config
    files, wrapper = read_index(folder / "source"), read_json(folder / "config.json")
    try:
        return files, dict(_video_config(files.config, wrapper))
    except (AttributeError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{folder.name}/source/config.json", f"cannot be understood ({error})") from None


def audio_vae_files(folder: Path) -> tuple[ComponentFiles, Mapping[str, Any]]:
    """The weights of an audio VAE and its config by diffusers names; natively the sizes lie in `metadata.json`."""
    files = read_index(folder)
    if not (folder / "metadata.json").is_file():
        return files, files.config
    told = read_json(folder / "metadata.json")
    try:
        return files, dict(_audio_config(told.get("metadata", {}).get("kwargs", {}), files.config))
    except (AttributeError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{folder.name}/metadata.json", f"cannot be understood ({error})") from None


def _video_config(source: Mapping[str, Any], wrapper: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if "ch" in source and "ch_mult" in source:
        yield "block_out_channels", [int(source["ch"]) * int(factor) for factor in source["ch_mult"]]
    for name, told in (("spatial_downsample_factors", "space_down"), ("temporal_downsample_factors", "time_down")):
        if told in source:
            yield name, [int(factor) for factor in source[told]]
    if "norm_num_groups" in source:
        yield "norm_num_groups", int(source["norm_num_groups"])
    if "num_res_blocks" in source:
        yield "layers_per_block", int(source["num_res_blocks"])
    yield "latent_channels", int(wrapper.get("latent_channels", source.get("embed_dim", source.get("z_channels", 24))))
    if "padding_mode" in source:
        yield "spatial_padding_mode", source["padding_mode"]
    decoder = source.get("vit_decoder_kwargs") or {}
    for values, fixed in ((wrapper, _WRAPPER_FIXED), (source, _SOURCE_FIXED), (decoder, _DECODER_FIXED)):
        _check_fixed(values, fixed)
    for name, spelling in _DECODER_NAMES.items():
        if spelling in decoder:
            yield name, decoder[spelling]
    for name, told in (("clip_length", "vae_clip_length"), ("token_drop", "vae_token_drop")):
        if told in wrapper:
            yield name, int(wrapper[told])
    yield "latents_mean", list(wrapper.get("latents_mean", ()))
    yield "latents_std", list(wrapper.get("latents_std", ()))


def _check_fixed(told: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    for key, value in fixed.items():
        if told.get(key, value) != value:
            raise ValueError(f"{key} must be {value!r}, which is what can be computed, and is {told[key]!r}")


def _audio_config(kwargs: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    _check_fixed(kwargs, _AUDIO_FIXED)
    for name in ("encoder_dim", "encoder_rates", "latent_dim", "decoder_dim", "decoder_rates"):
        if name in kwargs:
            yield name, kwargs[name]
    if "decoder_rates" in kwargs:
        # The kernels are not stored: each is twice its rate, made odd for an odd rate.
        yield "decoder_kernel_sizes", [2 * rate - rate % 2 for rate in kwargs["decoder_rates"]]
    for name in ("num_attention_heads", "resblock_kernel_sizes", "resblock_dilation_sizes"):
        if name in kwargs:
            yield name, kwargs[name]
    yield "latent_channels", int(kwargs.get("vae_latent_channels", config.get("latent_channels", 32)))
    yield "sampling_rate", int(kwargs.get("sample_rate", config.get("sample_rate", 32_000)))
    yield "latents_mean", list(config.get("latents_mean", ()))
    yield "latents_std", list(config.get("latents_std", ()))
