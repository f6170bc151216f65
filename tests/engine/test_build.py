"""Settings become a context; what is not there is told before anything is loaded."""

from __future__ import annotations

import pytest

from omnireel.config import resolve
from omnireel.engine.build import build_context, engine_facts
from omnireel.errors import BadSetting, UnknownModel


def config(**flags):
    return resolve({"model": "toy", "device": "cpu", **flags}, {})


def test_auto_is_the_devices_own_number_type():
    context, index = build_context(config())
    assert (context.checkpoint.name, context.device, context.dtype, index) == ("toy", "cpu", "float32", 0)


def test_a_chosen_number_type_is_kept():
    assert build_context(config(dtype="bfloat16"))[0].dtype == "bfloat16"


@pytest.mark.parametrize(("flags", "error"), [({"model": "toi"}, UnknownModel), ({"device": "tpu"}, BadSetting)])
def test_what_is_not_there_is_told(flags, error):
    with pytest.raises(error):
        build_context(config(**flags))


def test_facts_of_the_engine_go_by_the_names_of_settings():
    chosen = config(diffusion_attention_backend="TORCH_SDPA")
    context, index = build_context(chosen)
    facts = engine_facts(chosen, context, index)
    assert facts["device_name"]
    assert (facts["device"], facts["dtype"], facts["diffusion_attention_backend"]) == ("cpu", "float32", "TORCH_SDPA")
    assert facts["num_threads"] >= 1


def test_a_recipe_remembers_attention_by_role_where_it_was_chosen():
    by_role = {"per_role": {"self": "torch_sdpa"}}
    chosen, plain = config(diffusion_attention_config=by_role), config()
    context, index = build_context(chosen)
    assert engine_facts(chosen, context, index)["diffusion_attention_config"] == by_role
    assert "diffusion_attention_config" not in engine_facts(plain, context, index)
