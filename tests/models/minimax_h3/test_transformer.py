from typing import Any

import pytest
import torch

from omnireel.attention.backends.torch_sdpa import BACKEND
from omnireel.layers import Linear, RMSNorm
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, TransformerConfig, stored_dtype

RELEASED: dict[str, Any] = {
    "num_attention_heads": 56,
    "attention_head_dim": 128,
    "hidden_size": 5376,
    "num_layers": 50,
    "num_refiner_layers": 2,
    "ffn_dim": 14336,
    "in_channels": 24,
    "audio_in_channels": 32,
    "patch_size": [1, 2, 2],
    "text_dim": 5120,
    "freq_dim": 256,
    "time_embed_hidden_dim": 5376,
    "time_embed_dim": 2688,
    "rope_freq_dim": 16,
    "rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "qk_norm_eps": 1e-5,
    "final_norm_eps": 1e-5,
}
NATIVE: dict[str, Any] = {
    "num_attention_heads": 56,
    "attention_head_dim": 128,
    "hidden_size": 5376,
    "num_layers": 50,
    "token_refiner_num_layers": 2,
    "ffn_hidden_size": 14336,
    "latents_dim": 24,
    "audio_latents_dim": 32,
    "patch_size": [1, 2, 2],
    "text_dim": 5120,
    "timestep_input_dim": 256,
    "time_embed_hidden_size": 5376,
    "time_embed_dim": 2688,
    "rope_inv_freq_len": 16,
    "norm_eps": 1e-5,
    "qk_norm_eps": 1e-5,
    "final_norm_eps": 1e-5,
    "adaln_out_features": 96768,
    "final_adaln_out_features": 10752,
}
TINY: dict[str, Any] = RELEASED | {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "hidden_size": 16,
    "num_layers": 1,
    "num_refiner_layers": 1,
    "ffn_dim": 8,
    "in_channels": 2,
    "audio_in_channels": 3,
    "text_dim": 4,
    "freq_dim": 4,
    "time_embed_hidden_dim": 8,
    "time_embed_dim": 8,
    "rope_freq_dim": 2,
}


def build(config: dict[str, Any], device: str = "cpu", seen: list[tuple[str, str, int]] | None = None):
    def select(role: str, category: str, head_dim: int):
        if seen is not None:
            seen.append((role, category, head_dim))
        return BACKEND

    with torch.device(device):
        return MiniMaxH3Transformer(TransformerConfig.from_dict(config), select=select)


def fill(model):
    rng = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.3)
    return model


def call(model, **changes: Any):
    """Two text rows, one sound row, three picture rows, two timesteps."""
    inputs: dict[str, Any] = {
        "timestep_M": torch.tensor([0.25, 0.5]),
        "timestep_indices_S": torch.tensor([0, 0, 1, 0, 0, 0]),
        "token_tags_S": torch.tensor([1, 1, 2, 0, 0, 0]),
        "rotary": model.rotary(torch.arange(18.0, dtype=torch.float64).view(6, 3), torch.float32),
        "video_indices": torch.tensor([3, 4, 5]),
        "audio_indices": torch.tensor([2]),
        "text_indices": torch.tensor([0, 1]),
    }
    text = changes.pop("text", torch.ones(1, 2, 16))
    return model(torch.ones(1, 3, 8), torch.ones(1, 1, 3), text, **(inputs | changes))


def test_both_spellings_of_the_released_config_are_one():
    assert TransformerConfig.from_dict(NATIVE) == TransformerConfig.from_dict(RELEASED)


def test_keys_about_the_file_are_passed_over():
    assert TransformerConfig.from_dict(TINY | {"_class_name": "X"}) == TransformerConfig.from_dict(TINY)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_heads": 3, "colour": 1}, "unknown keys colour, num_heads"),
        ({"hidden_size": 0}, "hidden_size must be a positive whole number, got 0"),
        ({"hidden_size": 16.0}, "hidden_size must be a positive whole number, got 16.0"),
        ({"num_layers": True}, "num_layers must be a positive whole number, got True"),
        ({"norm_eps": "1e-5"}, "norm_eps must be a positive number"),
        ({"norm_eps": float("nan")}, "norm_eps must be a positive number, got nan"),
        ({"patch_size": [1, 2]}, "patch_size must be three whole numbers"),
        ({"patch_size": [1, 2, 0]}, "patch_size must be a positive whole number, got 0"),
        ({"rope_freq_dim": 3}, "rope_freq_dim 3 turns more than a head of 12"),
        ({"freq_dim": 3}, "freq_dim 3 must be even"),
        ({"adaln_out_features": 96}, "adaln_out_features must be 18 times hidden_size, got 96"),
    ],
)
def test_a_config_that_no_such_model_can_have_is_refused(change, problem):
    with pytest.raises(ValueError, match=problem):
        TransformerConfig.from_dict(TINY | change)


def test_missing_keys_are_named():
    with pytest.raises(ValueError, match="missing keys hidden_size, text_dim"):
        TransformerConfig.from_dict({key: TINY[key] for key in TINY.keys() - {"hidden_size", "text_dim"}})


def test_the_released_model_has_the_released_sizes():
    model = build(RELEASED, "meta")
    tensors = dict(model.named_parameters())
    stored = {name: stored_dtype(name, torch.bfloat16) for name in tensors}
    float32 = [name for name in tensors if stored[name] is torch.float32]
    assert len(tensors) == 638
    assert sum(tensor.numel() for tensor in tensors.values()) == 33_122_992_896
    assert len(float32) == 12
    assert sum(tensors[name].numel() for name in float32) == 17_222_144
    assert sum(tensors[name].numel() * stored[name].itemsize for name in tensors) == 66_280_430_080


def test_it_holds_parameters_only_so_nothing_stays_empty_after_loading():
    assert list(build(TINY, "meta").buffers()) == []


def test_each_role_is_asked_for_once():
    seen: list[tuple[str, str, int]] = []
    build(TINY | {"num_layers": 3, "num_refiner_layers": 2}, "meta", seen)
    assert sorted(seen) == [("minimax_h3.token_refiner", "self", 12), ("self", "self", 12)]


def test_it_is_made_of_the_house_layers_only():
    """Quantisation, adapters and sharding meet weights in Linear alone."""
    owners = {type(module) for module in build(TINY, "meta").modules() if list(module.parameters(recurse=False))}
    assert owners == {Linear, RMSNorm}


def test_the_inputs_are_left_as_they_were():
    model = fill(build(TINY))
    states, text = torch.ones(1, 2, 4), torch.ones(1, 2, 16)
    model.refine_text(states)
    call(model, text=text)
    assert torch.equal(states, torch.ones(1, 2, 4))
    assert torch.equal(text, torch.ones(1, 2, 16))


def test_the_same_call_gives_the_same_bits():
    model = fill(build(TINY))
    first, second = call(model), call(model)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_velocities_are_float32_under_bfloat16_blocks():
    model = fill(build(TINY))
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(stored_dtype(name, torch.bfloat16))
    text = model.refine_text(torch.ones(1, 2, 4))
    assert text.dtype is torch.bfloat16
    rotary = model.rotary(torch.zeros(6, 3), torch.bfloat16)
    assert [out.dtype for out in call(model, text=text, rotary=rotary)] == [torch.float32, torch.float32]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"token_tags_S": torch.tensor([1, 1, 2, 0, 0])}, r"token_tags must have the 6 rows .* got \(5,\)"),
        ({"token_tags_S": torch.tensor([1, 1, 2, 0, 0, -1])}, r"token_tags must lie in 0\.\.2, got -1\.\.2"),
        ({"token_tags_S": torch.tensor([1, 1, 3, 0, 0, 0])}, r"token_tags must lie in 0\.\.2, got 0\.\.3"),
        ({"timestep_indices_S": torch.tensor([0, 0, 2, 0, 0, 0])}, r"timestep_indices must lie in 0\.\.1, got 0\.\.2"),
    ],
)
def test_rows_that_no_table_answers_are_refused(change, problem):
    with pytest.raises(ValueError, match=problem):
        call(build(TINY), **change)
