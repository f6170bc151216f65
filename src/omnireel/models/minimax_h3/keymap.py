"""Names and stored types of tensors: our modules are named as the diffusers checkpoint, and native names are mapped here.

Native checkpoints keep q, k and v in one tensor, interleaved head by head, and the two halves of a gated feed-forward the other
way round. Which order a fused tensor has cannot be told from the file. Source: specification, sections 7.3 and 7.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from omnireel.errors import BadCheckpoint
from omnireel.weights import ComponentFiles, Part
from omnireel.weights.load import Rename, same_key

# Source: the released checkpoint, 12 float32 tensors; a name is met as a whole dotted component, never as a substring
# (`ff.net.0.proj` and `adaln_proj` are bfloat16).
KEEP_FLOAT32 = frozenset({"proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out"})

QKV_ORDERS = ("interleaved", "stacked")
"""Of native fused tensors: [q k v] of head after head, as published; or all q, all k, all v, as third parties store them."""

_DIT_PREFIXES: Mapping[str, str] = {
    "video_patch_proj.": "proj_in.",
    "audio_patch_proj.": "audio_proj_in.",
    "condition_proj.": "context_embedder.",
    "time_embedder.proj_in.": "time_embedder.linear_1.",
    "time_embedder.proj_out.": "time_embedder.linear_2.",
    "token_refiner.blocks.": "token_refiner.refiner_blocks.",
    "blocks.": "transformer_blocks.",
    "final_layer.norm.": "norm_out.norm.",
    "final_layer.adaln_proj.linear.": "norm_out.linear.",
    "final_layer.video_out.": "proj_out.",
    "final_layer.audio_out.": "audio_proj_out.",
}
_DIT_INNER: Mapping[str, str] = {
    ".attn.q_norm.": ".attn.norm_q.",
    ".attn.k_norm.": ".attn.norm_k.",
    ".attn.out_proj.": ".attn.to_out.0.",
    ".mlp.fc1.": ".ff.net.0.proj.",
    ".mlp.fc2.": ".ff.net.2.",
}
_VAE_PATTERNS = (
    (re.compile(r"^encoder\.down\.(\d+)\.block\.(\d+)\."), r"encoder.down_blocks.\1.resnets.\2."),
    (re.compile(r"^encoder\.down\.(\d+)\.downsample\.conv\."), r"encoder.down_blocks.\1.downsamplers.0.conv."),
    (re.compile(r"\.nin_shortcut\."), ".conv_shortcut."),
    (re.compile(r"^decoder\.x_embedder\."), "decoder.proj_in."),
    (re.compile(r"\.attn\.to_out\.(?!0\.)"), ".attn.to_out.0."),
    (re.compile(r"\.ff\.w1\."), ".ff.net.0.proj."),
    (re.compile(r"\.ff\.w2\."), ".ff.net.2."),
)


def stored_dtype(key: str, default: torch.dtype) -> torch.dtype:
    """The type of the tensor named `key` when the model as a whole is kept in `default`."""
    return torch.float32 if KEEP_FLOAT32.intersection(key.split(".")) else default


def transformer_names(files: ComponentFiles, *, num_heads: int, qkv_order: str) -> Rename:
    """How the DiT's stored keys map to our names, native or diffusers, as the keys themselves tell.

    Raises:
        BadCheckpoint: the weights were pruned by a third party and lack the time embedding.
    """
    if any("adaln_t_table" in key for key in files.tensors):
        raise BadCheckpoint(
            files.folder.name, "was pruned by a third party: its time embedding is a table", key="adaln_t_table"
        )
    is_native = "video_patch_proj.weight" in files.tensors
    return partial(_dit_name, num_heads=num_heads, qkv_order=qkv_order) if is_native else same_key


def video_vae_names(files: ComponentFiles, *, num_heads: int) -> Rename:
    """How the video VAE's stored keys map to our names, native or diffusers, as the keys themselves tell."""
    return partial(_vae_name, num_heads=num_heads) if "decoder.x_embedder.weight" in files.tensors else same_key


def _dit_name(key: str, *, num_heads: int, qkv_order: str) -> str | tuple[Part, ...] | None:
    if key == "rope.inv_freq":
        # Computed from the config; the stored values are equal.
        return None
    name = key
    for native, ours in _DIT_PREFIXES.items():
        if key.startswith(native):
            name = ours + key.removeprefix(native)
            break
    for native, ours in _DIT_INNER.items():
        name = name.replace(native, ours)
    if ".attn.qkv_proj." in name:
        return _split_qkv(name, "qkv_proj", num_heads, qkv_order)
    return (Part(name=name, take=_swapped_halves),) if ".ff.net.0.proj." in name else name


def _vae_name(key: str, *, num_heads: int) -> str | tuple[Part, ...] | None:
    if key == "decoder.mask_token":
        return None
    name = key
    for pattern, ours in _VAE_PATTERNS:
        name = pattern.sub(ours, name)
    if ".attn.to_qkv." in name:
        return _split_qkv(name, "to_qkv", num_heads, "interleaved")
    return (Part(name=name, take=_swapped_halves),) if ".ff.net.0.proj." in name else name


def _split_qkv(name: str, fused: str, num_heads: int, order: str) -> tuple[Part, ...]:
    take = _of_heads if order == "interleaved" else _of_stack
    return tuple(
        Part(name=name.replace(fused, part), take=partial(take, index=index, num_heads=num_heads))
        for index, part in enumerate(("to_q", "to_k", "to_v"))
    )


def _of_heads(fused: Tensor, *, index: int, num_heads: int) -> Tensor:
    """Rows of q, k or v out of [heads x (q, k, v) x channels, ...]."""
    return fused.reshape(num_heads, 3, -1, *fused.shape[1:])[:, index].reshape(-1, *fused.shape[1:])


def _of_stack(fused: Tensor, *, index: int, num_heads: int) -> Tensor:
    """Rows of q, k or v out of [q; k; v]."""
    return fused.reshape(3, -1, *fused.shape[1:])[index]


def _swapped_halves(fused: Tensor) -> Tensor:
    """[gate; value] as [value; gate]."""
    gate, value = fused.reshape(2, -1, *fused.shape[1:]).unbind(0)
    return torch.cat([value, gate])
