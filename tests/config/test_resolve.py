"""Precedence, sources and the names that are known."""

from dataclasses import FrozenInstanceError

import pytest

from omnireel.config import engine_settings, resolve
from omnireel.errors import BadSetting

ENVIRONMENT = {"OMNIREEL_DEVICE": "cpu", "OMNIREEL_MAX_QUEUE": "4"}


def test_nothing_said_gives_every_default():
    config = resolve({}, {"PATH": "/bin"})
    assert dict(config.values) == {name: item.default for name, item in engine_settings().items()}
    assert {source.kind for source in config.sources.values()} == {"default"}


@pytest.mark.parametrize(
    ("name", "variable", "flag"),
    [
        ("model", "toy", "mini-h3"),
        ("task_type", "t2va", "combined"),
        ("revision", "v1", "v2"),
        ("use_modelscope", "True", "False"),
        ("native_qkv_layout", "stacked", "interleaved"),
        ("device", "cpu", "cuda"),
        ("dtype", "float32", "bfloat16"),
        ("diffusion_attention_backend", "ONE", "TWO"),
        ("enforce_eager", "True", "False"),
        ("compile_blocks", "on", "off"),
        ("fused_kernels", "off", "on"),
        ("modulation_tables", "on", "off"),
        ("max_queue", "3", "4"),
        ("timeout_seconds", "1.5", "2.5"),
        ("num_threads", "1", "2"),
        ("enable_prompt_embed_cache", "True", "False"),
        ("prompt_embed_cache_size", "3", "4"),
        ("validate_finite_tensors", "True", "False"),
        ("log_level", "info", "debug"),
    ],
)
def test_the_environment_wins_over_the_default_and_the_flag_over_both(name, variable, flag):
    environ = {f"OMNIREEL_{name.upper()}": variable}
    from_environment = resolve({}, environ)
    from_flag = resolve({name: flag}, environ)
    assert str(from_environment.values[name]) == variable
    assert str(from_flag.values[name]) == flag
    assert str(from_environment.sources[name]) == f"environment OMNIREEL_{name.upper()}"
    assert str(from_flag.sources[name]) == f"flag --{name.replace('_', '-')}"


def test_the_precedence_table_misses_no_setting():
    marks = test_the_environment_wins_over_the_default_and_the_flag_over_both.pytestmark
    assert {row[0] for row in marks[0].args[1]} == set(engine_settings())


def test_specs_are_filled_from_the_values():
    config = resolve({"num_threads": 2}, ENVIRONMENT)
    assert (config.model.device, config.run.max_queue, config.run.num_threads) == ("cpu", 4, 2)


def test_a_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        resolve({}, {}).run.max_queue = 1  # type: ignore[misc]


def test_none_as_a_flag_is_the_backends_own_default():
    config = resolve({"num_threads": None}, {"OMNIREEL_NUM_THREADS": "3"})
    assert config.run.num_threads is None


def test_an_empty_variable_is_as_absent():
    assert resolve({}, {"OMNIREEL_DEVICE": ""}).sources["device"].kind == "default"


def test_attention_backend_reaches_the_attention_config():
    config = resolve({"diffusion_attention_backend": "torch_sdpa"}, {})
    assert config.attention.default is not None
    assert config.attention.default.backend == "TORCH_SDPA"


def test_the_variable_of_other_engines_is_read_and_ours_wins():
    alias = {"DIFFUSION_ATTENTION_BACKEND": "THEIRS"}
    assert str(resolve({}, alias).sources["diffusion_attention_backend"]) == "environment DIFFUSION_ATTENTION_BACKEND"
    both = alias | {"OMNIREEL_DIFFUSION_ATTENTION_BACKEND": "OURS"}
    assert resolve({}, both).values["diffusion_attention_backend"] == "OURS"


def test_an_unknown_keyword_names_the_nearest():
    with pytest.raises(BadSetting) as caught:
        resolve({"devise": "cpu"}, {})
    assert caught.value.hint == "did you mean device?"


def test_an_unknown_variable_names_the_nearest():
    with pytest.raises(BadSetting) as caught:
        resolve({}, {"OMNIREEL_DEVCE": "cpu"})
    assert caught.value.hint == "did you mean OMNIREEL_DEVICE?"


def test_a_bad_value_names_its_source():
    with pytest.raises(BadSetting) as caught:
        resolve({}, {"OMNIREEL_MAX_QUEUE": "many"})
    assert str(caught.value) == (
        "max_queue = 'many' (from environment OMNIREEL_MAX_QUEUE) is not allowed; it must be a whole number, at least 1"
    )


def test_a_bad_variable_is_an_error_also_under_a_flag():
    with pytest.raises(BadSetting):
        resolve({"max_queue": 2}, {"OMNIREEL_MAX_QUEUE": "many"})
