"""Spellings of the attention config."""

import pytest

from omnireel.attention.spec import AttentionSpec
from omnireel.config import resolve
from omnireel.config.attention import attention_config
from omnireel.errors import BadSetting


def test_texts_objects_nested_and_dotted_roles_mean_the_same():
    nested = attention_config({"default": "a", "per_role": {"cross": {"text": {"backend": "b"}, "image": "c"}}})
    dotted = attention_config(
        {"default": {"backend": "A"}, "per_role": {"cross.text": "B", "cross.image": {"backend": "c"}}}
    )
    assert nested == dotted
    assert nested.per_role == {"cross.text": AttentionSpec(backend="B"), "cross.image": AttentionSpec(backend="C")}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"defaults": "a"}, "its keys are default and per_role, not defaults"),
        ({"default": 3}, "default must name a backend"),
        ({"default": {}}, "default must name a backend"),
        ({"default": {"backend": 3}}, "default.backend must be the name"),
        ({"default": {"backend": "a", "cross": "b"}}, "default has cross, and its keys are backend"),
        ({"default": {"bakcend": "a"}}, "; did you mean backend by bakcend"),
        ({"per_role": 3}, "per_role must be an object"),
        ({"per_role": {"cross": {}}}, "per_role.cross is empty"),
        ({"per_role": {"cross": {"backend": "a", "text": "b"}}}, "per_role.cross has text, and its keys are backend"),
        ({"per_role": {"cross": 3}}, "per_role.cross must name a backend"),
        ({"default": {"quant": {}}}, "default.backend must be the name"),
        (
            {"default": {"backend": "TORCH_SDPA", "quant": {}}},
            "default: quant is an option of TRTLLM_ATTN and FLASHINFER",
        ),
        ({"default": {"backend": "RAINFUSION_ATTN", "block_sparse": 3}}, "default.block_sparse must be an object"),
        (
            {"default": {"backend": "RAINFUSION_ATTN", "block_sparse": {"x": 1}}},
            "keys x; known are sparsity, start_step",
        ),
        (
            {"default": {"backend": "RAINFUSION_ATTN", "block_sparse": {"sparsity": 2}}},
            "sparsity = 2 is no number from 0",
        ),
        (
            {"per_role": {"a": {"backend": "RAINFUSION_ATTN", "block_sparse": {"skip_layers": 3}}}},
            "per_role.a.block_sparse",
        ),
        ({"per_role": {"cross": {"quant": {}, "text": "b"}}}, "per_role.cross has text, and its keys are backend"),
    ],
)
def test_anything_else_is_refused_when_settings_are_resolved(written, words):
    with pytest.raises(BadSetting, match=words):
        resolve({"diffusion_attention_config": written}, {})


def test_options_are_read_into_their_specs():
    made = attention_config(
        {
            "default": {"backend": "trtllm_attn", "skip_softmax": {"threshold": 0.5}, "quant": {"dtype_qk": "int8"}},
            "per_role": {
                "self": {"backend": "rainfusion_attn", "block_sparse": {"skip_layers": "0-1", "start_step": 3}}
            },
        }
    )
    assert made.default is not None
    assert made.default.lowered() == {
        "threshold": 0.5, "disabled_until_timestep": 0.0, "dtype_qk": "int8", "q_block_size": 1, "k_block_size": 16,
    }  # fmt: skip
    assert made.per_role["self"].lowered() == {"sparsity": 0.8, "start_step": 3, "skip_layers": [0, 1]}


def test_numbers_may_be_written_as_text_as_dotted_flags_do():
    def config(sparsity, step):
        options = {"sparsity": sparsity, "start_step": step, "skip_layers": "0, 2-3"}
        return attention_config({"default": {"backend": "rainfusion_attn", "block_sparse": options}})

    assert config("0.5", "3") == config(0.5, 3)
    with pytest.raises(ValueError, match=r"start_step = 3\.5"):
        config(0.5, "3.5")
