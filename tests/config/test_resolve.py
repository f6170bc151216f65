"""Precedence of every pair of places for every setting, sources, owners, and names that are known."""

import itertools
import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from tests.support.settings import kind_of, one_stage, pipeline, two_values

from omnireel.config import all_settings, convert, engine_settings, merge, owners, resolve
from omnireel.errors import BadSetting, Incompatible, NotAvailable, OmniReelError, UnownedSettings
from omnireel.models.topology import ExecutionType, StageFacts, Topology

ENVIRONMENT = {"OMNIREEL_DEVICE": "cpu", "OMNIREEL_MAX_QUEUE": "4"}
PLACES = ("default", "topology", "environment", "deploy", "deploy stage", "extras", "flag", "stage flag")
OF_THE_PARENT = ("model", "tokenizer")
OF_STAGES = ("topology", "deploy stage", "extras", "stage flag")
OF_THE_COMMAND = ("deploy_config", "stage_overrides")


def written(value):
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


def as_text(value):
    return str(value) if isinstance(value, str | Path) else json.dumps(written(value))


def stated(name, said, folder):
    """The config where each place of `said` says its value."""
    file = {name: written(said["deploy"])} if "deploy" in said else {}
    stage = {name: written(said["deploy stage"])} if "deploy stage" in said else {}
    stage |= {"engine_extras": {name: written(said["extras"])}} if "extras" in said else {}
    flags = {name: said["flag"]} if "flag" in said else {}
    flags |= {f"stage_0_{name}": said["stage flag"]} if "stage flag" in said else {}
    if file or stage:
        path = folder / "deploy.yaml"
        path.write_text(json.dumps({**file, "stages": [stage] if stage else []}))
        flags["deploy_config"] = path
    text = (
        ",".join(said["environment"])
        if isinstance(said.get("environment"), tuple)
        else as_text(said.get("environment"))
    )
    environ = {f"OMNIREEL_{name.upper()}": text} if "environment" in said else {}
    settings = {name: said["topology"]} if "topology" in said else {}
    return merge(flags, environ, topology=one_stage(kind_of(name), settings=settings))


def places_of(name):
    """The places that may say a setting, the weakest first."""
    if name in OF_THE_COMMAND:
        return ("default", "environment", "flag")
    places = PLACES if owners()[name] else tuple(place for place in PLACES if place not in OF_STAGES)
    if name not in OF_THE_PARENT:
        return places
    return ("default", "environment", "deploy", "flag", "topology", "deploy stage", "extras", "stage flag")


SOURCES = {
    "default": "default", "topology": "topology", "environment": "environment", "deploy": "deploy",
    "deploy stage": "deploy", "extras": "deploy", "flag": "flag", "stage flag": "stage flag",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in all_settings() if name not in OF_THE_COMMAND])
def test_the_stronger_of_every_pair_of_places_wins(name, tmp_path):
    item = all_settings()[name]
    first, second = two_values(item)
    # What a pipeline of one stage cannot have is switched off, whoever says it.
    expected = {True: False} if name == "async_chunk" else {}
    for weak, strong in itertools.combinations(places_of(name), 2):
        for values in ((first, second), (second, first)):
            said = dict(zip((weak, strong), values, strict=True))
            said.pop("default", None)
            config = stated(name, said, tmp_path)
            wanted = convert(item, values[1])
            assert config.values[name] == expected.get(wanted, wanted) if expected else config.values[name] == wanted
            if not expected:
                assert config.sources[name].kind == SOURCES[strong], (weak, strong)


@pytest.mark.parametrize("name", [name for name, item in all_settings().items() if item.is_optional and owners()[name]])
@pytest.mark.parametrize("place", ["flag", "stage flag", "deploy", "extras"])
def test_none_is_the_backends_own_default_over_what_was_said_below(name, place, tmp_path):
    config = stated(name, {"topology": two_values(all_settings()[name])[0], place: None}, tmp_path)
    is_kept = name in OF_THE_PARENT and place in ("flag", "deploy")
    assert (config.values[name] is None) != is_kept


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("ar", "gpu_memory_utilization", 0.75),
        ("ar", "enable_prefix_caching", False),
        ("ar", "enable_chunked_prefill", False),
        ("ar", "async_scheduling", False),
        ("ar", "max_cudagraph_capture_size", 0),
        ("ar", "kv_cache_memory_bytes", 0),
        ("generation", "disable_hybrid_kv_cache_manager", False),
        ("generation", "enable_prefix_caching", True),
        ("diffusion", "request_batch_max_wait_ms", 0.0),
        ("diffusion", "pin_cpu_memory", False),
    ],
)
def test_an_explicit_false_or_zero_is_kept_over_every_rule(kind, name, value):
    config = merge({name: value}, {}, topology=one_stage(kind))
    assert config.stages[0].values[name] == value
    assert config.stages[0].sources[name].kind == "flag"


def test_what_is_said_of_the_command_is_no_line_of_a_file(tmp_path):
    path = tmp_path / "deploy.yaml"
    path.write_text("dtype: auto\ndeploy_config: other.yaml\n")
    with pytest.raises(BadSetting, match=f"deploy {path}:2"):
        resolve({"deploy_config": path}, {})


def test_nothing_said_gives_every_default():
    config = resolve({}, {"PATH": "/bin"})
    assert dict(config.values) == {name: item.default for name, item in all_settings().items()}
    assert {source.kind for source in config.sources.values()} == {"default"}


@pytest.mark.parametrize("name", ["deploy_config", "stage_overrides"])
def test_where_settings_come_from_is_a_variable_or_a_flag(name, tmp_path):
    path = tmp_path / "deploy.yaml"
    path.write_text("max_queue: 5\nnum_threads: 5\n")
    value = path if name == "deploy_config" else {"0": {"num_threads": 5}}
    environ = {f"OMNIREEL_{name.upper()}": str(path) if name == "deploy_config" else json.dumps(value)}
    assert resolve({}, environ).run.num_threads == resolve({name: value}, {}).run.num_threads == 5


def test_sources_name_the_line_the_variable_and_the_flag(tmp_path):
    path = tmp_path / "deploy.yaml"
    path.write_text(
        "# settings\nmax_queue: 5\n\nstages:\n  - stage_id: 0\n    num_threads: 2\n    engine_extras:\n      dtype: float32\n"
    )
    config = resolve({"deploy_config": path, "task_type": "t2va", "stage_0_revision": "v1"}, ENVIRONMENT)
    found = {name: str(config.sources[name]) for name in
             ("max_queue", "num_threads", "dtype", "task_type", "revision", "device", "model")}  # fmt: skip
    assert found == {
        "max_queue": f"deploy {path}:2",
        "num_threads": f"deploy {path}:6",
        "dtype": f"deploy {path}:8",
        "task_type": "flag --task-type",
        "revision": "stage flag --stage-0-revision",
        "device": "environment OMNIREEL_DEVICE",
        "model": "default",
    }


def test_specs_are_filled_from_the_values():
    config = resolve({"num_threads": 2}, ENVIRONMENT)
    assert (config.model.device, config.run.max_queue, config.run.num_threads) == ("cpu", 4, 2)


def test_a_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        resolve({}, {}).run.max_queue = 1  # type: ignore[misc]


def test_nothing_that_was_given_is_changed():
    flags = {"stage_overrides": {"0": {"parallel_config": {"ring_degree": 1}}}, "parallel_config": {"usp": 1}}
    before = json.dumps(flags)
    resolve(flags, {})
    assert json.dumps(flags) == before


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


@pytest.mark.parametrize("alias", ["max_batch_size", "usp", "ring", "kv_cache_dtype", "diffusion_quantization_config"])
def test_an_alias_and_its_name_are_one_setting(alias):
    name = next(name for name, item in all_settings().items() if alias in item.aliases)
    value = two_values(all_settings()[name])[0]
    assert merge({alias: value}, {}).values[name] == value
    with pytest.raises(BadSetting, match=f"it is said as {name} too"):
        merge({name: value, alias: value}, {})


def test_an_alias_may_mean_the_opposite():
    assert merge({"dlo_no_use_allgather": True}, {}).offload.dlo_use_allgather is False


@pytest.mark.parametrize("name", [name for name in all_settings() if name not in engine_settings()])
def test_what_does_not_exist_yet_is_never_silently_accepted(name):
    item = all_settings()[name]
    asked = [value for value in two_values(item) if not item.is_idle(value)][:1]
    assert asked
    if name == "async_chunk":
        return
    with pytest.raises(NotAvailable) as caught:
        resolve({name: asked[0]}, {}, topology=one_stage(kind_of(name)))
    assert item.pending in caught.value.message
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("said", "name", "stages"),
    [
        ({"stage_0_omni_kv_config": {"need_send_cache": True}}, "omni_kv_config", {"0": "ar"}),
        ({"stage_0_kv_transfer_config": {"kv_connector": "A"}}, "kv_transfer_config", {"0": "ar"}),
        ({"stage_2_input_connectors": {"from_stage_0": "shm"}}, "input_connectors", {"2": "diffusion"}),
        ({"omni_kv_config": {"a": 1}}, "omni_kv_config", {"0": "ar", "1": "generation", "2": "diffusion"}),
    ],
)
def test_a_hand_over_that_no_model_has_is_refused_naming_stage_type_and_setting(said, name, stages):
    with pytest.raises(NotAvailable, match=name) as caught:
        resolve(said, {}, topology=pipeline())
    assert caught.value.details["stages"] == stages
    assert all(f"{number} ({kind})" in caught.value.message for number, kind in stages.items())


def test_a_hand_over_that_a_pipeline_itself_asks_for_is_refused_too():
    with pytest.raises(NotAvailable, match=r"omni_kv_config = .*from topology thinker.*stage 0 \(ar\)"):
        resolve({}, {}, topology=pipeline(omni_kv_config={"need_send_cache": True}))


def test_a_setting_of_language_models_is_not_one_of_a_diffusion_stage():
    with pytest.raises(UnownedSettings, match=r"stage 2 \(diffusion\) does not have kv_transfer_config"):
        resolve({"stage_2_kv_transfer_config": {"a": 1}}, {}, topology=pipeline())


@pytest.mark.parametrize("name", [name for name, item in all_settings().items() if item.pending])
def test_saying_what_happens_anyway_is_no_error(name):
    item = all_settings()[name]
    for value in (item.default, *item.idle):
        assert resolve({name: value}, {}, topology=one_stage(kind_of(name))).values[name] == value


@pytest.mark.parametrize(
    ("kind", "settings", "names"),
    [
        ("ar", {"kv_cache_dtype": "fp8", "cache_backend": "tea_cache"}, "cache_backend, kv_cache_dtype"),
        ("generation", {"parallel_config": {"ulysses_degree": 2}, "step_execution": True},
         "parallel_config.ulysses_degree, step_execution"),
        ("diffusion", {"gpu_memory_utilization": 0.5, "max_model_len": 9}, "gpu_memory_utilization, max_model_len"),
        ("diffusion", {"parallel_config": {"dtype": "auto", "ring": 1}}, "parallel_config.dtype"),
        ("diffusion", {"max_queue": 1, "nonsense": 2}, "max_queue, nonsense"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["topology", "deploy", "extras", "flags", "overrides"])
def test_a_stage_refuses_all_that_it_does_not_have_at_once(kind, settings, names, place, tmp_path):
    path = tmp_path / "deploy.yaml"
    stage = settings if place == "deploy" else {"engine_extras": settings} if place == "extras" else {}
    path.write_text(json.dumps({"stages": [stage]}))
    flags = {f"stage_0_{name}": value for name, value in settings.items()} if place == "flags" else {}
    flags |= {"stage_overrides": {"0": settings}} if place == "overrides" else {}
    topology = one_stage(kind, settings=settings if place == "topology" else {})
    with pytest.raises(UnownedSettings) as caught:
        merge({"deploy_config": path, **flags}, {}, topology=topology)
    assert caught.value.message.startswith(f"stage 0 ({kind}) does not have {names} (from ")
    assert caught.value.details["names"] == names.split(", ")


def test_the_error_of_a_later_stage_names_its_number_and_type():
    with pytest.raises(UnownedSettings, match=r"stage 1 \(generation\) does not have lora_path"):
        merge({"stage_1_lora_path": "x"}, {}, topology=pipeline())


def test_what_is_said_of_all_goes_to_the_stages_that_have_it():
    config = merge({"cache_backend": "tea_cache", "max_num_seqs": 0 + 3}, {}, topology=pipeline())
    assert [stage.values.get("cache_backend") for stage in config.stages] == [None, None, "tea_cache"]
    assert [stage.batch.max_num_seqs for stage in config.stages] == [3, 3, 3]


def test_what_no_stage_has_is_refused_also_when_said_of_all():
    with pytest.raises(UnownedSettings) as caught:
        merge({"kv_cache_dtype": "fp8"}, {}, topology=one_stage("ar"))
    assert caught.value.message.startswith("stage 0 (ar) does not have kv_cache_dtype")
    assert "stages of type diffusion" in caught.value.hint


def test_a_variable_that_no_stage_has_is_for_other_pipelines():
    environ = {"OMNIREEL_DIFFUSION_ATTENTION_BACKEND": "TORCH_SDPA"}
    assert merge({}, environ, topology=one_stage("ar")).stages[0].facts.name == "only"


def test_a_topologys_hand_over_wins_over_the_extras_of_a_file(tmp_path):
    path = tmp_path / "deploy.yaml"
    path.write_text(json.dumps({"stages": [{"engine_extras": {"omni_kv_config": {"from": "file"}}}]}))
    topology = one_stage("ar", omni_kv_config={"from": "topology"})
    config = merge({"deploy_config": path}, {}, topology=topology)
    assert config.stages[0].handover.omni_kv_config == {"from": "topology"}
    flag = merge({"deploy_config": path, "omni_kv_config": {"from": "flag"}}, {}, topology=topology)
    assert flag.stages[0].handover.omni_kv_config == {"from": "flag"}


def test_the_pipelines_model_and_tokenizer_are_not_those_of_a_stage_that_has_its_own():
    config = merge({"model": "parent", "tokenizer": "words"}, {}, topology=pipeline(settings={"model": "own"}))
    assert [stage.model.model for stage in config.stages] == ["own", "parent", "parent"]
    assert [stage.load.tokenizer for stage in config.stages] == ["words", "words", None]
    assert config.model.model == "parent"


def test_rules_of_the_platform_and_the_stage_type():
    rocm = merge({}, {}, topology=pipeline(), platform="rocm")
    assert [stage.values.get("attention_backend") for stage in rocm.stages] == ["TRITON_ATTN", "TRITON_ATTN", None]
    assert rocm.attention.default is None
    explicit = merge({"device": "rocm:1", "stage_0_attention_backend": "X"}, {}, topology=pipeline())
    assert [stage.language.attention_backend for stage in explicit.stages] == ["X", "TRITON_ATTN", None]
    cuda = merge({}, {}, topology=pipeline(needs_media=True), platform="cuda")
    assert [stage.language.attention_backend for stage in cuda.stages] == [None, None, None]
    assert [stage.tokens.async_scheduling for stage in cuda.stages] == [True, None, None]
    assert [stage.memory.disable_hybrid_kv_cache_manager for stage in cuda.stages] == [None, True, None]
    assert [stage.memory.enable_prefix_caching for stage in cuda.stages] == [None, False, None]
    assert [stage.load.skip_mm_profiling for stage in cuda.stages] == [None, True, None]


def test_a_rule_asks_for_nothing_so_it_is_no_feature_that_is_missing():
    assert resolve({}, {}, topology=pipeline(), platform="rocm").stages[0].tokens.async_scheduling


def test_a_batch_must_hold_its_requests_where_both_are_said():
    with pytest.raises(BadSetting, match="max_num_batched_tokens"):
        merge({"max_num_seqs": 8, "max_num_batched_tokens": 4}, {}, topology=one_stage("ar"))
    assert merge({"max_num_batched_tokens": 4}, {}, topology=one_stage("ar"))


def test_chunks_need_a_stage_that_takes_them():
    halves = StageFacts(name="halves", execution_type=ExecutionType.AR, chunk_processor="a:b")
    whole = StageFacts(name="whole", execution_type=ExecutionType.AR, inputs=(0,), final_output="text")
    with pytest.raises(BadSetting, match=r"stage 1 \(whole\) cannot begin before its input is complete"):
        merge({"async_chunk": True}, {}, topology=Topology(name="two", stages=(halves, whole)))


def test_chunks_need_a_producer_that_makes_them():
    with pytest.raises(BadSetting, match=r"stage 0 \(thinker\) cannot hand its output over in chunks"):
        merge({"async_chunk": True}, {}, topology=pipeline())
    assert merge({"async_chunk": True}, {}, topology=pipeline(chunk_processor="a:b")).stages_flags.async_chunk
    alone = resolve({"async_chunk": True}, {})
    assert (alone.stages_flags.async_chunk, str(alone.sources["async_chunk"])) == (False, "rule pipeline of one stage")


@pytest.mark.parametrize("flags", [{"stage_3_dtype": "auto"}, {"stage_overrides": {"3": {"dtype": "auto"}}}])
def test_a_stage_that_is_not_there_is_an_error(flags):
    with pytest.raises(BadSetting, match="three has stages 0 to 2"):
        merge(flags, {}, topology=pipeline())


@pytest.mark.parametrize("value", [[1], {"first": {}}, {"0": 1}, '{"0": '])
def test_overrides_that_are_none_are_refused(value):
    with pytest.raises(BadSetting, match="stage_overrides"):
        resolve({"stage_overrides": value}, {})


def test_the_topology_may_be_told_by_the_name_of_a_pipeline():
    told = []

    def topology(name):
        told.append(name)
        return pipeline()

    assert len(merge({"pipeline": "m"}, {}, topology=topology).stages) == 3
    assert told == ["m"]


def test_one_stage_as_an_engine_of_its_own():
    config = merge({"max_queue": 3, "stage_2_dtype": "float32", "dtype": "bfloat16"}, {}, topology=pipeline())
    alone = config.of_stage(2)
    assert (alone.model.dtype, alone.run.max_queue, len(alone.stages)) == ("float32", 3, 1)
    assert config.of_stage(0).model.dtype == config.model.dtype == "bfloat16"
    assert str(alone.sources["dtype"]) == "stage flag --stage-2-dtype"


def test_every_problem_can_be_had_at_once(tmp_path):
    path = tmp_path / "deploy.yaml"
    path.write_text("dtype: big\nnonsense: 1\ntensor_parallel_size: 2\nstages:\n- max_model_len: 1\n- dtype: auto\n")
    problems: list[OmniReelError] = []
    resolve({"deploy_config": path}, {}, on_problem=problems.append)
    assert {problem.code for problem in problems} == {"bad_setting", "unowned_settings", "not_available"}
    assert {str(path) + f":{line}" in " ".join(p.message for p in problems) for line in (1, 2, 3, 5, 6)} == {True}


def test_two_settings_that_cannot_go_together_say_where_they_came_from():
    flags = {"diffusion_attention_config": {"default": "A"}, "diffusion_attention_backend": "B"}
    with pytest.raises(Incompatible) as caught:
        resolve(flags, {})
    assert "from flag --diffusion-attention-backend" in caught.value.message
    assert "both name the default backend" in caught.value.message


def test_a_problem_is_told_once_although_it_is_met_for_every_stage(tmp_path):
    path = tmp_path / "deploy.yaml"
    path.write_text("num_replicas: 0\nmax_queue: lots\ndevice: 3\n")
    problems: list[OmniReelError] = []
    resolve({"deploy_config": path}, {}, topology=pipeline(), on_problem=problems.append)
    assert [problem.details["name"] for problem in problems] == ["num_replicas", "max_queue", "device"]


def test_overrides_of_no_stage_are_told_without_what_they_hold():
    with pytest.raises(BadSetting, match="stage_overrides = 'first'") as caught:
        resolve({"stage_overrides": {"first": {"env": {"TOKEN": "s3cret"}}}}, {})
    assert "s3cret" not in str(caught.value.to_dict())
