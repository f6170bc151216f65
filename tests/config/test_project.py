"""What backends are started with."""

import pytest
from tests.support.settings import one_stage, pipeline, two_values

from omnireel.config import all_settings, engine_arguments, merge, owners
from omnireel.config.project import world_size

NOT_FORWARDED = {"default_sampling_params", "devices", "num_replicas", "env", "model_subdir", "tokenizer_subdir"}
QUANTIZATION = {"quantization", "quantization_config"}
PARALLEL = {name for name in all_settings() if name in ("tensor_parallel_size", "pipeline_parallel_size",
            "data_parallel_size", "enable_expert_parallel")}  # fmt: skip


def arguments(kind, flags, **facts):
    return engine_arguments(merge(flags, {}, topology=one_stage(kind, **facts)).stages[0])


@pytest.mark.parametrize("kind", ["ar", "generation", "diffusion"])
def test_every_setting_of_a_stage_is_forwarded_or_known_not_to_be(kind):
    for name, item in all_settings().items():
        if kind not in owners()[name] or name in NOT_FORWARDED | QUANTIZATION:
            continue
        value = two_values(item)[0]
        found = arguments(kind, {name: value})
        flat = {**found, **found.get("parallel_config", {})}
        assert flat[name] == value, name


@pytest.mark.parametrize("kind", ["ar", "generation", "diffusion"])
def test_what_was_not_said_is_not_there_but_the_architecture(kind):
    found = arguments(kind, {})
    assert found["model_arch"] is None
    assert [name for name, value in found.items() if value is None] == ["model_arch"]
    assert not NOT_FORWARDED & set(found)


def test_explicit_false_and_zero_are_forwarded():
    flags = {"enable_prefix_caching": False, "max_cudagraph_capture_size": 0, "gpu_memory_utilization": 0.75}
    found = arguments("ar", flags)
    assert {name: found[name] for name in flags} == flags


def test_degrees_are_nested_for_diffusion_and_flat_for_language_models():
    assert arguments("diffusion", {"tensor_parallel_size": 2, "ring": 2})["parallel_config"]["ring_degree"] == 2
    found = arguments("ar", {"tensor_parallel_size": 2})
    assert found["tensor_parallel_size"] == 2
    assert "parallel_config" not in found


@pytest.mark.parametrize(
    ("kind", "flags", "expected"),
    [
        ("ar", {"quantization": "fp8"}, {"quantization": "fp8"}),
        ("diffusion", {"quantization": "fp8"}, {"quantization_config": "fp8"}),
        ("ar", {"quantization_config": {"a": 1}}, {"quantization_config": {"a": 1}}),
        ("diffusion", {"quantization_config": {"a": 1}}, {"quantization_config": {"a": 1}}),
    ],
)
def test_quantisation_has_the_name_that_the_backend_knows(kind, flags, expected):
    found = arguments(kind, flags)
    assert {name: found[name] for name in QUANTIZATION & set(found)} == expected


def test_the_architecture_is_the_stages_else_the_topologys():
    facts = {"model_arch": "FromTopology", "scheduler_cls": "S", "hf_config_name": "thinker"}
    found = arguments("diffusion", {}, **facts)
    assert (found["model_arch"], found["model_class_name"]) == ("FromTopology", "FromTopology")
    assert (found["scheduler_cls"], found["hf_config_name"], found["stage_id"]) == ("S", "thinker", 0)
    said = arguments("diffusion", {"model_arch": "Said", "model_class_name": "Class"}, **facts)
    assert (said["model_arch"], said["model_class_name"]) == ("Said", "Class")


def test_folders_are_below_the_stages_own_root():
    topology = pipeline(settings={"model": "own/root", "model_subdir": "lm", "tokenizer_subdir": "words"})
    config = merge({"model": "parent"}, {}, topology=topology)
    found = [engine_arguments(stage) for stage in config.stages]
    assert [item["model"] for item in found] == ["own/root/lm", "parent", "parent"]
    assert found[0]["tokenizer"] == "own/root/words"


def test_sampling_defaults_are_forwarded_as_a_word_only():
    assert arguments("ar", {"default_sampling_params": {"extra_args": {"a": 1}}})["has_sampling_extra_args"]
    assert not arguments("ar", {"default_sampling_params": {"seed": 1}})["has_sampling_extra_args"]


def test_arguments_are_copies():
    config = merge({"hf_overrides": {"a": {"b": 1}}}, {}, topology=one_stage("ar"))
    engine_arguments(config.stages[0])["hf_overrides"]["a"]["b"] = 2
    assert config.stages[0].language.hf_overrides == {"a": {"b": 1}}


def test_the_world_is_the_product_of_the_degrees():
    flags = {"tp": None, "tensor_parallel_size": 2, "ulysses_degree": 3, "ring_degree": 2, "cfg_parallel_size": 2}
    flags.pop("tp")
    assert world_size(merge(flags, {}).stages[0]) == 24
    assert world_size(merge({**flags, "data_parallel_size": 2}, {}).stages[0]) == 48
