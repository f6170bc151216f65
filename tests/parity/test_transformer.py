"""Our DiT against the public one: the same saved weights, the same inputs, several shapes of model and layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import MiniMaxH3Transformer3DModel
from tests.parity.tolerances import assert_close
from torch import Tensor

from omnireel.attention import AttentionBackend, AttentionConfig, select_backend
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, TransformerConfig, stored_dtype
from omnireel.weights import load_component, read_index

BASE: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "hidden_size": 24,
    "num_layers": 2,
    "num_refiner_layers": 2,
    "ffn_dim": 32,
    "in_channels": 4,
    "audio_in_channels": 6,
    "patch_size": (1, 2, 2),
    "text_dim": 8,
    "freq_dim": 8,
    "time_embed_hidden_dim": 24,
    "time_embed_dim": 16,
    "rope_freq_dim": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "small": {},
    "three heads wider than the stream": {"num_attention_heads": 3, "attention_head_dim": 32, "rope_freq_dim": 5},
    "one head, all channels turned": {"num_attention_heads": 1, "attention_head_dim": 12, "num_layers": 1},
    "deep, one refiner": {"num_layers": 5, "num_refiner_layers": 1, "hidden_size": 40, "ffn_dim": 72},
    "released widths of rows": {
        "num_attention_heads": 2,
        "attention_head_dim": 128,
        "hidden_size": 64,
        "rope_freq_dim": 16,
        "in_channels": 24,
        "audio_in_channels": 32,
        "freq_dim": 256,
    },
    "other epsilons and base": {"norm_eps": 1e-3, "qk_norm_eps": 1e-2, "final_norm_eps": 1e-4, "rope_theta": 500.0},
    "patch of two frames": {"patch_size": (2, 2, 1), "in_channels": 3},
}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One packed sequence; index tensors say which rows are which, in any order."""

    video: Tensor
    audio: Tensor
    text: Tensor
    timestep: Tensor
    timestep_indices: Tensor
    token_tags: Tensor
    position_ids: Tensor
    video_indices: Tensor
    audio_indices: Tensor
    text_indices: Tensor

    @property
    def indices(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("video_indices", "audio_indices", "text_indices")}


def make_inputs(
    config: dict[str, Any],
    *,
    grid: tuple[int, int, int] = (2, 3, 5),
    num_timesteps: int = 2,
    shuffled: bool = False,
    batch: int = 1,
) -> Inputs:
    rng = torch.Generator().manual_seed(7)
    num_text, num_audio, num_video = 5, 6, grid[0] * grid[1] * grid[2]
    num_rows = num_text + num_audio + num_video
    order = torch.randperm(num_rows, generator=rng) if shuffled else torch.arange(num_rows)
    text_indices, audio_indices, video_indices = order.split([num_text, num_audio, num_video])
    tags = torch.empty(num_rows, dtype=torch.int64)
    tags[text_indices], tags[audio_indices], tags[video_indices] = 1, 2, 0
    tags[text_indices[2:4]] = 0
    timestep_indices = torch.randint(num_timesteps, (num_rows,), generator=rng) if shuffled else tags % num_timesteps
    patch = config["patch_size"]
    video_dim = config["in_channels"] * patch[0] * patch[1] * patch[2]
    return Inputs(
        video=torch.randn(batch, num_video, video_dim, generator=rng),
        audio=torch.randn(batch, num_audio, config["audio_in_channels"], generator=rng),
        text=torch.randn(batch, num_text, config["text_dim"], generator=rng),
        timestep=torch.rand(num_timesteps, generator=rng).sort().values,
        timestep_indices=timestep_indices,
        token_tags=tags,
        position_ids=torch.rand(num_rows, 3, generator=rng, dtype=torch.float64) * 100,
        video_indices=video_indices,
        audio_indices=audio_indices,
        text_indices=text_indices,
    )


def make_reference(config: dict[str, Any], dtype: torch.dtype) -> MiniMaxH3Transformer3DModel:
    """Every weight is random, norms and biases too, for ones and zeros would hide mistakes."""
    model = MiniMaxH3Transformer3DModel(**config).eval().requires_grad_(False)
    rng = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        spread = 0.5 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        centre = 1.0 if "norm" in name and name.endswith(".weight") and parameter.ndim == 1 else 0.0
        parameter.data = (torch.randn(parameter.shape, generator=rng) * spread + centre).to(stored_dtype(name, dtype))
    return model


def as_stored(key: str, stored: torch.dtype) -> torch.dtype:
    return stored


def make_ours(folder: Path, dtype_of: Callable[[str, torch.dtype], torch.dtype] = as_stored) -> MiniMaxH3Transformer:
    files = read_index(folder)
    with torch.device("meta"):
        model = MiniMaxH3Transformer(TransformerConfig.from_dict(files.config), select=select)
    load_component(model, files, device=torch.device("cpu"), dtype_of=dtype_of)
    return model


def select(role: str, category: str, head_dim: int) -> AttentionBackend:
    return select_backend(
        AttentionConfig(),
        role=role,
        category=category,
        head_dim=head_dim,
        platform_name="cpu",
        preference=("TORCH_SDPA",),
    )


def both(reference: Any, folder: Path, inputs: Inputs) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(video, audio) of ours and of theirs, ours loaded from what theirs saved."""
    reference.save_pretrained(folder)
    return run_both(make_ours(folder), reference, inputs)


def run_both(
    ours: MiniMaxH3Transformer, reference: Any, inputs: Inputs
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    text = ours.refine_text(inputs.text)
    rotary = ours.rotary(inputs.position_ids, text.dtype)
    mine = ours(
        inputs.video,
        inputs.audio,
        text,
        timestep_M=inputs.timestep,
        timestep_indices_S=inputs.timestep_indices,
        token_tags_S=inputs.token_tags,
        rotary=rotary,
        **inputs.indices,
    )
    theirs = reference(
        hidden_states=inputs.video,
        audio_hidden_states=inputs.audio,
        encoder_hidden_states=inputs.text,
        timestep=inputs.timestep,
        timestep_indices=inputs.timestep_indices,
        token_tags=inputs.token_tags,
        position_ids=inputs.position_ids,
        return_dict=False,
        **inputs.indices,
    )
    return mine, theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "mixed"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_shape_of_model_gives_the_reference_velocities(name, dtype, tmp_path):
    config = BASE | CONFIGS[name]
    mine, theirs = both(make_reference(config, dtype), tmp_path, make_inputs(config))
    bound = "dit_float32" if dtype is torch.float32 else "dit_mixed"
    for ours, reference in zip(mine, theirs, strict=True):
        assert_close(bound, ours, reference)


@pytest.mark.parametrize("num_timesteps", [1, 2, 3, 4])
@pytest.mark.parametrize("grid", [(1, 1, 1), (3, 1, 7), (2, 5, 3)], ids=str)
def test_every_layout_gives_the_reference_velocities(grid, num_timesteps, tmp_path):
    inputs = make_inputs(BASE, grid=grid, num_timesteps=num_timesteps)
    mine, theirs = both(make_reference(BASE, torch.float32), tmp_path, inputs)
    for ours, reference in zip(mine, theirs, strict=True):
        assert_close("dit_float32", ours, reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "mixed"])
def test_rows_in_any_order_with_any_timestep_give_the_reference_velocities(dtype, tmp_path):
    inputs = make_inputs(BASE, num_timesteps=3, shuffled=True)
    mine, theirs = both(make_reference(BASE, dtype), tmp_path, inputs)
    for ours, reference in zip(mine, theirs, strict=True):
        assert_close("dit_mixed", ours, reference)


def test_a_batch_gives_the_reference_velocities(tmp_path):
    inputs = make_inputs(BASE, batch=3)
    mine, theirs = both(make_reference(BASE, torch.float32), tmp_path, inputs)
    for ours, reference in zip(mine, theirs, strict=True):
        assert_close("dit_float32", ours, reference)


def test_a_float32_checkpoint_is_cast_to_the_reference_mixed_layout(tmp_path):
    make_reference(BASE, torch.float32).save_pretrained(tmp_path)
    reference = MiniMaxH3Transformer3DModel.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    ours = make_ours(tmp_path, lambda key, stored: stored_dtype(key, torch.bfloat16))
    types = {name: parameter.dtype for name, parameter in ours.named_parameters()}
    assert types == {name: parameter.dtype for name, parameter in reference.named_parameters()}
    with torch.inference_mode():
        mine, theirs = run_both(ours, reference, make_inputs(BASE))
    for ours_out, reference_out in zip(mine, theirs, strict=True):
        assert_close("dit_mixed", ours_out, reference_out)


def test_every_weight_changes_the_velocities(tmp_path):
    """Guards the comparisons above: a weight that did not matter in them could be used wrongly unseen."""
    make_reference(BASE, torch.float32).save_pretrained(tmp_path)
    reference = MiniMaxH3Transformer3DModel.from_pretrained(tmp_path)
    ours, inputs = make_ours(tmp_path), make_inputs(BASE)
    unseen = []
    for name, parameter in ours.named_parameters():
        kept = parameter.data
        parameter.data = kept.flip(-1)
        with torch.inference_mode():
            mine, theirs = run_both(ours, reference, inputs)
        parameter.data = kept
        if all((a - b).abs().max() < 1e-4 for a, b in zip(mine, theirs, strict=True)):
            unseen.append(name)
    assert unseen == []
