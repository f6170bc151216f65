"""`omnireel config`."""

import json
from dataclasses import replace

import pytest

from omnireel.config import all_settings, engine_settings


def shown(omnireel, *flags):
    return json.loads(omnireel("config", "show", "--json", *flags).out)


def test_every_setting_is_shown_with_its_source(omnireel, monkeypatch):
    monkeypatch.setenv("OMNIREEL_MAX_QUEUE", "4")
    settings = shown(omnireel, "--device", "cpu")["settings"]
    assert list(settings) == list(engine_settings())
    assert settings["max_queue"] == {"value": 4, "source": {"kind": "environment", "name": "OMNIREEL_MAX_QUEUE"}}
    assert settings["device"] == {"value": "cpu", "source": {"kind": "flag", "name": "--device"}}
    assert settings["dtype"] == {"value": "auto", "source": {"kind": "default", "name": ""}}


def test_stages_are_shown_too(omnireel):
    stage = shown(omnireel, "--stage-0-dtype", "float32")["stages"][0]
    assert (stage["stage_id"], stage["execution_type"]) == (0, "diffusion")
    assert stage["settings"]["dtype"] == {
        "value": "float32",
        "source": {"kind": "stage flag", "name": "--stage-0-dtype"},
    }
    assert "max_queue" not in stage["settings"]


@pytest.fixture
def secret(monkeypatch):
    """Makes settings secret for the length of a test."""

    def make(*names):
        for name in names:
            monkeypatch.setitem(all_settings(), name, replace(all_settings()[name], is_secret=True))

    return make


def test_a_secret_is_never_shown(omnireel, secret):
    secret("revision", "max_queue", "download_dir", "timeout_seconds")
    ended = omnireel("config", "show", "--revision", "xyzzy", "--stage-0-revision", "xyzzy", "--json")
    told = json.loads(ended.out)
    both = [told["settings"], told["stages"][0]["settings"]]
    assert [settings["revision"]["value"] for settings in both] == ["***", "***"]
    assert told["settings"]["timeout_seconds"]["value"] is None
    refused = [omnireel("generate", "a ball", flag, "xyzzy") for flag in ("--max-queue", "--download-dir")]
    for seen in (ended, omnireel("config", "show", "--revision", "xyzzy"), *refused):
        assert "xyzzy" not in seen.out + seen.err
    assert all("***" in seen.err for seen in refused)


def test_people_get_a_table(omnireel):
    rows = [row.split() for row in omnireel("config", "show", "--num-threads", "2").out.splitlines()]
    assert rows[0] == ["setting", "value", "source"]
    assert ["num_threads", "2", "flag", "--num-threads"] in rows


def test_verbose_is_log_level_info_unless_a_level_is_typed(omnireel):
    def level(*flags):
        return shown(omnireel, *flags)["settings"]["log_level"]["value"]

    assert [level(), level("-v"), level("-v", "--log-level", "debug")] == ["warning", "info", "debug"]


def test_a_bad_setting_is_the_operators_mistake(omnireel, monkeypatch):
    monkeypatch.setenv("OMNIREEL_DEVCE", "cpu")
    ended = omnireel("config", "show")
    assert ended.code == 3
    assert "did you mean OMNIREEL_DEVICE?" in ended.err


def test_alone_it_tells_its_actions(omnireel):
    ended = omnireel("config")
    assert ended.code == 0
    assert all(action in ended.out for action in ("show", "check", "schema"))


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["--diffusion-attention-config.default.backend", "A"], {"default": {"backend": "A"}}),
        (["--diffusion_attention_config.per_role.cross.backend=B"], {"per_role": {"cross": {"backend": "B"}}}),
        (
            ["--diffusion-attention-config", '{"default": "A"}', "--diffusion-attention-config.per-role.self", "B"],
            {"default": "A", "per_role": {"self": "B"}},
        ),
        (["--stage-0-diffusion-attention-config.default.backend", "A"], {"default": {"backend": "A"}}),
        (["--stage-overrides.0.diffusion-attention-config.default", "A"], {"default": "A"}),
    ],
)
def test_parts_of_a_mapping_are_flags(omnireel, flags, value):
    assert shown(omnireel, *flags)["settings"]["diffusion_attention_config"]["value"] == value


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--stage-0-num-threads", "2"], "num_threads", 2),
        (["--stage_0_num_threads=2"], "num_threads", 2),
        (["--stage-0-enable-prompt-embed-cache"], "enable_prompt_embed_cache", True),
        (["--stage-0-enable-prompt-embed-cache", "--json"], "enable_prompt_embed_cache", True),
        (["--stage-0-enable-prompt-embed-cache", "false"], "enable_prompt_embed_cache", False),
        (["--stage-0-no-use-modelscope"], "use_modelscope", False),
        (["--stage-overrides", '{"0": {"num_threads": 2}}', "--stage-0-num-threads", "3"], "num_threads", 3),
    ],
)
def test_a_flag_may_be_for_one_stage(omnireel, flags, name, value):
    found = shown(omnireel, *flags)["stages"][0]["settings"][name]
    assert (found["value"], found["source"]["kind"]) == (value, "stage flag")


@pytest.mark.parametrize("flag", ["--stage-0-dtype", "--diffusion-attention-config.default"])
def test_a_part_needs_its_value(omnireel, flag):
    ended = omnireel("config", "show", flag, "--json")
    assert (ended.code, ended.err.splitlines()[0]) == (2, f"error: {flag}: expected one argument")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ring", "2"], "ring_degree = 2 (from flag --ring-degree) is not available for stage 0 (diffusion)"),
        (["--usp", "2", "--sequence-parallel-size", "4"], "ulysses_degree x ring_degree x allgather_degree is 2"),
        (["--usp", "2", "--worker-backend", "uni"], "its ranks are worker processes of this machine"),
        (["--parallel-config.tensor-parallel-size", "2"], "tensor_parallel_size = 2 (from flag --parallel-config"),
        (["--enable-cpu-offload"], "it needs offloading, which this version does not have"),
        (["--dlo-no-use-allgather"], "dlo_use_allgather = False"),
        (["--cache-config.rel_l1_thresh", "0.2"], "it needs step caches, which"),
        (["--quantization", "fp8"], "it needs quantisation, which"),
        (["--stage-0-streaming-output"], "stage flag --stage-0-streaming-output"),
        (["--stage-1-dtype", "auto"], "diffusion has stage 0 alone"),
        (["--stage-0-max-model-len", "9"], "stage 0 (diffusion) does not have max_model_len"),
        (["--diffusion-attention-backend", "A", "--diffusion-attention-config.default", "B"], "both name the default"),
    ],
)
def test_what_cannot_be_is_said_before_anything_loads(omnireel, flags, words):
    ended = omnireel("config", "show", *flags)
    assert ended.code == 3
    assert words in ended.err
    assert "\nhint: " in ended.err


def test_scripts_that_spell_out_defaults_of_other_servers_go_on(omnireel):
    flags = ["--tensor-parallel-size", "1", "--usp", "1", "--no-enable-cpu-offload", "--max-num-seqs", "1"]
    flags += ["--cache-backend", "none", "--trust-remote-code", "--enforce-eager", "--dlo-use-allgather"]
    assert omnireel("config", "show", *flags).code == 0


def test_a_sound_file_is_sound(omnireel, tmp_path):
    (tmp_path / "deploy.yaml").write_text("max_queue: 3\nstages:\n- num_threads: 2\n")
    ended = omnireel("config", "check", "deploy.yaml")
    assert (ended.code, ended.out, ended.err) == (0, "deploy.yaml: no problems\n", "")


def test_every_problem_of_a_file_is_told_with_its_line(omnireel, tmp_path):
    (tmp_path / "deploy.yaml").write_text("max_queue: no\ndtypo: auto\nstages:\n- {max_model_len: 2, lora_path: x}\n")
    ended = omnireel("config", "check", "deploy.yaml", "--json")
    problems = json.loads(ended.out)["problems"]
    assert ended.code == 3
    assert [problem["code"] for problem in problems] == [
        "bad_setting",
        "bad_setting",
        "unowned_settings",
        "not_available",
    ]
    text = omnireel("config", "check", "deploy.yaml").err
    assert all(f"deploy.yaml:{line}" in text for line in (1, 2, 4))
    assert "did you mean dtype?" in text


def test_a_file_that_is_not_there_is_a_problem(omnireel):
    ended = omnireel("config", "check", "none.yaml")
    assert ended.code == 3
    assert "No such file" in ended.err


def test_the_schema_is_json(omnireel):
    assert json.loads(omnireel("config", "schema").out)["title"] == "omnireel deploy file"


def test_a_deploy_file_is_read_by_commands(omnireel, tmp_path):
    (tmp_path / "deploy.yaml").write_text("num_threads: 2\n")
    found = shown(omnireel, "--deploy-config", "deploy.yaml")["settings"]["num_threads"]
    assert found == {"value": 2, "source": {"kind": "deploy", "name": "deploy.yaml:1"}}
