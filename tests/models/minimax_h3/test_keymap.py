import pytest
import torch

from omnireel.models.minimax_h3.keymap import stored_dtype


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
