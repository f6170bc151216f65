"""Names, types and orders of stored tensors, against numbers written out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from omnireel.errors import BadCheckpoint
from omnireel.models.minimax_h3.keymap import stored_dtype, transformer_names, video_vae_names
from omnireel.weights import ComponentFiles, Part
from omnireel.weights.index import TensorEntry


@pytest.mark.parametrize(
    "key",
    ["proj_in.weight", "audio_proj_in.bias", "time_embedder.linear_1.weight", "proj_out.bias", "audio_proj_out.weight"],
)
def test_heads_and_time_stay_in_float32(key):
    assert stored_dtype(key, torch.bfloat16) is torch.float32


@pytest.mark.parametrize(
    "key",
    [
        "transformer_blocks.0.ff.net.0.proj.weight",
        "transformer_blocks.0.adaln_proj.linear.bias",
        "transformer_blocks.0.norm1.weight",
        "norm_out.linear.weight",
        "my_proj_in.weight",
    ],
)
def test_all_else_takes_the_default(key):
    assert stored_dtype(key, torch.bfloat16) is torch.bfloat16


def files_of(*keys: str) -> ComponentFiles:
    entry = {"dtype": "F32", "shape": (1,), "file": Path("x/model.safetensors"), "offset": 0, "size_bytes": 4}
    tensors = {key: TensorEntry(key=key, **entry) for key in keys}  # type: ignore[arg-type]
    return ComponentFiles(folder=Path("x"), config={}, shards=(Path("x/model.safetensors"),), tensors=tensors)


def dit(key: str, order: str = "interleaved") -> str | tuple[Part, ...] | None:
    return transformer_names(files_of("video_patch_proj.weight"), num_heads=2, qkv_order=order)(key)


def vae(key: str) -> str | tuple[Part, ...] | None:
    return video_vae_names(files_of("decoder.x_embedder.weight"), num_heads=2)(key)


def taken(parts: str | tuple[Part, ...] | None, rows: int) -> dict[str, list[int]]:
    """Which rows of a stored tensor each part takes, by name."""
    assert isinstance(parts, tuple)
    return {part.name: part.take(torch.arange(rows)).tolist() for part in parts}


@pytest.mark.parametrize(
    ("native", "ours"),
    [
        ("video_patch_proj.weight", "proj_in.weight"),
        ("audio_patch_proj.bias", "audio_proj_in.bias"),
        ("condition_proj.weight", "context_embedder.weight"),
        ("time_embedder.proj_in.weight", "time_embedder.linear_1.weight"),
        ("time_embedder.proj_out.bias", "time_embedder.linear_2.bias"),
        ("token_refiner.blocks.1.norm1.weight", "token_refiner.refiner_blocks.1.norm1.weight"),
        ("token_refiner.final_norm.weight", "token_refiner.final_norm.weight"),
        ("blocks.49.adaln_proj.linear.bias", "transformer_blocks.49.adaln_proj.linear.bias"),
        ("blocks.0.attn.q_norm.weight", "transformer_blocks.0.attn.norm_q.weight"),
        ("blocks.0.attn.k_norm.weight", "transformer_blocks.0.attn.norm_k.weight"),
        ("blocks.0.attn.out_proj.weight", "transformer_blocks.0.attn.to_out.0.weight"),
        ("blocks.0.mlp.fc2.weight", "transformer_blocks.0.ff.net.2.weight"),
        ("final_layer.norm.weight", "norm_out.norm.weight"),
        ("final_layer.adaln_proj.linear.weight", "norm_out.linear.weight"),
        ("final_layer.video_out.weight", "proj_out.weight"),
        ("final_layer.audio_out.bias", "audio_proj_out.bias"),
        ("rope.inv_freq", None),
    ],
)
def test_native_names_of_the_dit(native, ours):
    assert dit(native) == ours


@pytest.mark.parametrize(
    ("native", "ours"),
    [
        ("encoder.down.3.block.1.norm1.weight", "encoder.down_blocks.3.resnets.1.norm1.weight"),
        ("encoder.down.1.block.0.nin_shortcut.bias", "encoder.down_blocks.1.resnets.0.conv_shortcut.bias"),
        ("encoder.down.0.downsample.conv.weight", "encoder.down_blocks.0.downsamplers.0.conv.weight"),
        ("decoder.x_embedder.bias", "decoder.proj_in.bias"),
        ("decoder.transformer_blocks.7.attn.to_out.weight", "decoder.transformer_blocks.7.attn.to_out.0.weight"),
        ("decoder.transformer_blocks.7.ff.w2.bias", "decoder.transformer_blocks.7.ff.net.2.bias"),
        ("decoder.transformer_blocks.7.scale1", "decoder.transformer_blocks.7.scale1"),
        ("quant_conv.weight", "quant_conv.weight"),
        ("decoder.mask_token", None),
    ],
)
def test_native_names_of_the_video_vae(native, ours):
    assert vae(native) == ours


def test_published_heads_lie_one_behind_the_other():
    # Two heads of two channels: q q k k v v of the first, then of the second.
    assert taken(dit("blocks.3.attn.qkv_proj.weight"), 12) == {
        "transformer_blocks.3.attn.to_q.weight": [0, 1, 6, 7],
        "transformer_blocks.3.attn.to_k.weight": [2, 3, 8, 9],
        "transformer_blocks.3.attn.to_v.weight": [4, 5, 10, 11],
    }


def test_third_parties_stack():
    assert taken(dit("blocks.3.attn.qkv_proj.weight", "stacked"), 12) == {
        "transformer_blocks.3.attn.to_q.weight": [0, 1, 2, 3],
        "transformer_blocks.3.attn.to_k.weight": [4, 5, 6, 7],
        "transformer_blocks.3.attn.to_v.weight": [8, 9, 10, 11],
    }


@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_the_video_vae_interleaves_weights_and_biases(leaf):
    name = "decoder.transformer_blocks.0.attn"
    assert taken(vae(f"{name}.to_qkv.{leaf}"), 6) == {
        f"{name}.to_q.{leaf}": [0, 3],
        f"{name}.to_k.{leaf}": [1, 4],
        f"{name}.to_v.{leaf}": [2, 5],
    }


def test_gate_and_value_change_places():
    assert taken(dit("blocks.0.mlp.fc1.weight"), 4) == {"transformer_blocks.0.ff.net.0.proj.weight": [2, 3, 0, 1]}
    name = "decoder.transformer_blocks.0.ff"
    assert taken(vae(f"{name}.w1.bias"), 4) == {f"{name}.net.0.proj.bias": [2, 3, 0, 1]}


def test_diffusers_names_stay_as_they_are():
    names = transformer_names(files_of("proj_in.weight"), num_heads=2, qkv_order="interleaved")
    assert names("transformer_blocks.0.ff.net.0.proj.weight") == "transformer_blocks.0.ff.net.0.proj.weight"
    assert (
        video_vae_names(files_of("decoder.proj_in.weight"), num_heads=2)("decoder.mask_token") == "decoder.mask_token"
    )


@pytest.mark.parametrize("key", ["adaln_t_table", "time_embedder.adaln_t_table"])
def test_pruned_weights_are_refused(key):
    with pytest.raises(BadCheckpoint, match="adaln_t_table"):
        transformer_names(files_of("video_patch_proj.weight", key), num_heads=2, qkv_order="interleaved")
