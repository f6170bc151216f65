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
        ({"default": {"backend": "a", "cross": "b"}}, "that is ambiguous"),
        ({"per_role": 3}, "per_role must be an object"),
        ({"per_role": {"cross": {}}}, "per_role.cross is empty"),
        ({"per_role": {"cross": {"backend": "a", "text": "b"}}}, "per_role.cross has the keys text beside backend"),
        ({"per_role": {"cross": 3}}, "per_role.cross must name a backend"),
    ],
)
def test_anything_else_is_refused_when_settings_are_resolved(written, words):
    with pytest.raises(BadSetting, match=words):
        resolve({"diffusion_attention_config": written}, {})
