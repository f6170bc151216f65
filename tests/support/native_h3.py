"""The tiny checkpoint rewritten as native partitions, by the inverse of the published mapping."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.support.tiny_h3 import TRANSFORMER, VIDEO_VAE

DIT_NAMES = (
    (r"^proj_in\.", "video_patch_proj."), (r"^audio_proj_in\.", "audio_patch_proj."), (r"^context_embedder\.", "condition_proj."),
    (r"^time_embedder\.linear_1\.", "time_embedder.proj_in."), (r"^time_embedder\.linear_2\.", "time_embedder.proj_out."),
    (r"^token_refiner\.refiner_blocks\.", "token_refiner.blocks."), (r"^transformer_blocks\.", "blocks."),
    (r"^norm_out\.norm\.", "final_layer.norm."), (r"^norm_out\.linear\.", "final_layer.adaln_proj.linear."),
    (r"^proj_out\.", "final_layer.video_out."), (r"^audio_proj_out\.", "final_layer.audio_out."),
    (r"\.attn\.norm_q\.", ".attn.q_norm."), (r"\.attn\.norm_k\.", ".attn.k_norm."),
    (r"\.attn\.to_out\.0\.", ".attn.out_proj."), (r"\.ff\.net\.0\.proj\.", ".mlp.fc1."), (r"\.ff\.net\.2\.", ".mlp.fc2."),
)  # fmt: skip
VAE_NAMES = (
    (r"^encoder\.down_blocks\.(\d+)\.resnets\.(\d+)\.", r"encoder.down.\1.block.\2."),
    (r"^encoder\.down_blocks\.(\d+)\.downsamplers\.0\.conv\.", r"encoder.down.\1.downsample.conv."),
    (r"\.conv_shortcut\.", ".nin_shortcut."), (r"^decoder\.proj_in\.", "decoder.x_embedder."),
    (r"\.attn\.to_out\.0\.", ".attn.to_out."), (r"\.ff\.net\.0\.proj\.", ".ff.w1."), (r"\.ff\.net\.2\.", ".ff.w2."),
)  # fmt: skip
_NATIVE_CONFIG = {
    "num_refiner_layers": "token_refiner_num_layers", "ffn_dim": "ffn_hidden_size", "in_channels": "latents_dim",
    "audio_in_channels": "audio_latents_dim", "freq_dim": "timestep_input_dim",
    "time_embed_hidden_dim": "time_embed_hidden_size", "rope_freq_dim": "rope_inv_freq_len",
}  # fmt: skip


def native_tensors(
    tensors: dict[str, torch.Tensor], table: Any, heads: int, fused: str, *, is_stacked: bool = False
) -> dict[str, torch.Tensor]:
    """q, k and v joined head by head (or stacked), halves of gated layers exchanged, names by `table`."""
    made: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        name = key
        for pattern, native in table:
            name = re.sub(pattern, native, name)
        if ".attn.to_q." in name:
            parts = [tensors[key.replace("to_q", part)] for part in ("to_q", "to_k", "to_v")]
            if is_stacked:
                joined = torch.cat(parts)
            else:
                joined = torch.stack([part.reshape(heads, -1, *part.shape[1:]) for part in parts], dim=1).flatten(0, 2)
            made[name.replace("to_q", fused)] = joined.contiguous()
        elif ".attn.to_k." not in name and ".attn.to_v." not in name:
            is_gated = ".mlp.fc1." in name or ".ff.w1." in name
            made[name] = torch.cat(tensor.chunk(2)[::-1]).contiguous() if is_gated else tensor
    return made


def write_native(checkpoint: Path, root: Path, *, is_stacked: bool = False) -> Path:
    """`root` with FL2VA and Ref2VA, of the same weights as the diffusers layout in `checkpoint`."""
    for partition, folder in (("FL2VA", "transformer"), ("Ref2VA", "transformer_ref")):
        home = root / partition
        for shared in ("text_encoder", "tokenizer"):
            shutil.copytree(checkpoint / shared, home / shared)
        _write_transformer(checkpoint / folder, home / "transformer", is_stacked=is_stacked)
        _write_video_vae(checkpoint / "vae", home / "video_vae")
        _write_audio_vae(checkpoint / "audio_vae", home / "audio_vae")
        index = json.loads((checkpoint / "modular_model_index.json").read_text())
        block = {
            "partition": partition.lower(),
            "tasks": ["t2va", "fl2va"] if partition == "FL2VA" else ["ref2va"],
            "sigma_shift_scales": {"video": 12.0, "audio": 3.0},
        }
        index |= {"_class_name": "MiniMaxH3Pipeline", "scheduler": None, "_minimax_h3": block}
        (home / "model_index.json").write_text(json.dumps(index))
    return root


def _write_transformer(source: Path, target: Path, *, is_stacked: bool) -> None:
    target.mkdir(parents=True)
    (file,) = source.glob("*.safetensors")
    heads = TRANSFORMER["num_attention_heads"]
    tensors = native_tensors(load_file(file), DIT_NAMES, heads, "qkv_proj", is_stacked=is_stacked)
    tensors["rope.inv_freq"] = torch.ones(TRANSFORMER["rope_freq_dim"])
    save_file(tensors, target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({_NATIVE_CONFIG.get(key, key): v for key, v in config.items()}))


def _write_video_vae(source: Path, target: Path) -> None:
    (target / "source").mkdir(parents=True)
    (file,) = source.glob("*.safetensors")
    heads = VIDEO_VAE["decoder_num_attention_heads"]
    tensors = native_tensors(load_file(file), VAE_NAMES, heads, "to_qkv")
    tensors["decoder.mask_token"] = torch.zeros(1, 1, 16)
    save_file(tensors, target / "source" / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    widths = config["block_out_channels"]
    inner = {
        "ch": widths[0], "ch_mult": [width // widths[0] for width in widths], "embed_dim": config["latent_channels"],
        "z_channels": config["latent_channels"], "num_res_blocks": config["layers_per_block"],
        "space_down": [2, 2, 2, 2, 1, 1], "time_down": [1, 2, 2, 1, 1, 1], "padding_mode": "reflect", "use_vit_decoder": True,
        "norm_num_groups": config["norm_num_groups"],
        "vit_decoder_kwargs": {
            "num_layers": config["decoder_num_layers"], "heads": heads, "dim_head": config["decoder_attention_head_dim"],
            "num_register_tokens": config["decoder_num_register_tokens"], "ffn_mult": config["decoder_ffn_mult"],
            "norm_type": "rms_norm", "qk_norm_affine": False, "ffn_activation_fn": "silu", "ffn_use_gated": True,
        },
    }  # fmt: skip
    (target / "source" / "config.json").write_text(json.dumps(inner))
    outer = {name: config[name] for name in ("latent_channels", "latents_mean", "latents_std")}
    outer |= {
        "vae_encoder_tiling": 1,
        "vae_decoder_tiling": 1,
        "vae_clip_length": 17,
        "vae_token_drop": 3,
        "vae_tile_size": 256,
        "vae_tile_overlap_min": 64,
    }
    (target / "config.json").write_text(json.dumps(outer))


def _write_audio_vae(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    (file,) = source.glob("*.safetensors")
    save_file(load_file(file), target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    kwargs = {
        name: config[name] for name in ("encoder_dim", "encoder_rates", "latent_dim", "decoder_dim", "decoder_rates")
    }
    kwargs |= {"sample_rate": 32_000, "vae_latent_channels": config["latent_channels"]}
    kwargs |= {"attn_proj": True, "decoder_type": "bigvgan"}
    kwargs |= {
        name: config[name] for name in ("num_attention_heads", "resblock_kernel_sizes", "resblock_dilation_sizes")
    }
    (target / "metadata.json").write_text(json.dumps({"metadata": {"kwargs": kwargs}}))
    outer = {name: config[name] for name in ("latent_channels", "latents_mean", "latents_std")}
    (target / "config.json").write_text(json.dumps(outer | {"sample_rate": 32_000}))
