"""`omnireel generate` on the toy: what is refused before anything is loaded, where files go, what is printed."""

import json
import re
from pathlib import Path

import pytest
from tests.support.language_model import write_language_model

from omnireel.engine.orchestrator import Engine
from omnireel.media.recipe import read_recipe

TOY = ("generate", "a kite", "--model", "toy", "--height", "16", "--width", "16", "--num-frames", "3")


@pytest.fixture
def never_loaded(monkeypatch):
    """Loading the model fails the test."""

    def start(_engine):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(Engine, "start", start)


@pytest.mark.parametrize(
    ("argv", "code", "names"),
    [
        (["generate"], 2, "no prompt"),
        (["generate", "", "--model", "toy"], 2, "prompt"),
        (["generate", "  ", "--model", "toy"], 2, "prompt"),
        ([*TOY, "--model", "toi"], 2, "toi"),
        ([*TOY, "--seed", "9223372036854775808"], 2, "seed"),
        ([*TOY, "--seed", "one"], 2, "seed"),
        ([*TOY, "--height", "33"], 2, "height"),
        ([*TOY, "--num-frames", "0"], 2, "num_frames"),
        ([*TOY, "--num-frames", "1.5"], 2, "num_frames"),
        ([*TOY, "--num-inference-steps", "1"], 2, "num_inference_steps"),
        ([*TOY, "--flow-shift", "nan"], 2, "flow_shift"),
        ([*TOY, "--flow-shift", "-inf"], 2, "flow_shift"),
        ([*TOY, "--extra-args", "{"], 2, "extra_args"),
        ([*TOY, "--num-outputs-per-prompt", "0"], 2, "num_outputs_per_prompt"),
        ([*TOY, "--output-type", "latent"], 2, "output_type"),
        ([*TOY, "-o", "missing/a.mp4"], 2, "missing"),
        ([*TOY, "-o", "a.gif"], 2, "a.gif"),
        ([*TOY, "-o", ""], 2, "output"),
        ([*TOY, "--preview", "a.txt"], 2, "a.txt"),
        ([*TOY, "--preview-every", "2"], 2, "preview_every"),
        ([*TOY, "--model", "."], 3, "model_index.json"),
        ([*TOY, "--device", "tpu"], 3, "tpu"),
        ([*TOY, "--max-queue", "0"], 3, "max_queue"),
        ([*TOY, "--log-level", "loud"], 3, "log_level"),
        ([*TOY, "--seeed", "1"], 2, "--seeed"),
    ],
)
@pytest.mark.usefixtures("never_loaded")
def test_bad_input_is_one_error_before_the_model_is_loaded(omnireel, argv, code, names):
    ended = omnireel(*argv)
    first = ended.err.splitlines()[0]
    assert (ended.code, ended.out) == (code, "")
    assert first.startswith("error: ")
    assert names in first
    assert not list(Path().iterdir())


def test_the_file_is_named_on_stdout_and_nothing_is_on_stderr(omnireel):
    ended = omnireel(*TOY, "-o", "kite.mp4")
    assert (ended.code, ended.out, ended.err) == (0, "kite.mp4\n", "")
    assert [path.name for path in Path().iterdir()] == ["kite.mp4"]


def test_without_a_name_the_seed_names_the_file_and_nothing_is_replaced(omnireel):
    names = [omnireel(*TOY, "--seed", "7").out for _ in range(2)]
    assert names == ["omnireel-7.mp4\n", "omnireel-7-2.mp4\n"]


def test_a_named_file_is_replaced(omnireel):
    Path("a.mp4").write_text("old")
    omnireel(*TOY, "-o", "a.mp4")
    assert read_recipe(Path("a.mp4")).prompt == "a kite"


def test_a_drawn_seed_is_told_and_makes_the_clip_again(omnireel):
    first = json.loads(omnireel(*TOY, "--json").out)
    again = json.loads(omnireel(*TOY, "--json", "--seed", str(first["seed"])).out)
    assert first["path"] == f"omnireel-{first['seed']}.mp4"
    assert again["recipe"]["frames_digest"] == first["recipe"]["frames_digest"]


def test_json_tells_what_was_made(omnireel):
    made = json.loads(omnireel(*TOY, "--seed", "-5", "-o", "a.mp4", "--json").out)
    told = {name: made[name] for name in ("path", "seed", "size", "num_frames", "fps", "task", "num_inference_steps")}
    assert told == {
        "path": "a.mp4",
        "seed": -5,
        "size": "16x16",
        "num_frames": 3,
        "fps": 24.0,
        "task": "t2va",
        "num_inference_steps": 5,
    }
    assert {"encode", "denoise", "decode", "mux"} <= made["stage_durations"].keys()
    assert made["peak_memory_mb"] > 0
    assert made["size_bytes"] == Path("a.mp4").stat().st_size


def test_several_outputs_have_seeds_and_names_in_order(omnireel):
    ended = omnireel(*TOY, "--seed", "3", "--num-outputs-per-prompt", "2", "-o", "a.mp4", "--json")
    made = [json.loads(line) for line in ended.out.splitlines()]
    assert [(item["path"], item["seed"]) for item in made] == [("a.mp4", 3), ("a-2.mp4", 4)]


def test_a_preview_is_kept(omnireel):
    omnireel(*TOY, "-o", "a.mp4", "--preview", "look.png", "--preview-every", "2")
    assert Path("look.png").read_bytes().startswith(b"\x89PNG")


def test_no_recipe_leaves_it_out(omnireel):
    omnireel(*TOY, "-o", "a.mp4", "--no-recipe")
    assert omnireel("reproduce", "a.mp4").code == 2


@pytest.mark.parametrize("failure", ["encode", "step:2", "decode", "oom"])
def test_a_failure_leaves_no_file(omnireel, failure):
    ended = omnireel(*TOY, "--extra-args", json.dumps({"fail": failure}), "-o", "a.mp4", "--json")
    assert ended.code == 4
    assert "error" in json.loads(ended.out)
    assert not list(Path().iterdir())


def test_a_request_that_takes_too_long_is_ended(omnireel):
    ended = omnireel(*TOY, "--extra-args", '{"step_seconds": 0.1}', "--timeout-seconds", "0.15")
    assert ended.code == 4
    assert "0.15 s" in ended.err


def test_the_prompt_may_come_from_a_file(omnireel):
    Path("prompt.txt").write_text("rain\n", encoding="utf-8")
    ended = omnireel("generate", "--prompt-file", "prompt.txt", *TOY[2:], "--json")
    assert json.loads(ended.out)["recipe"]["prompt"] == "rain"


def test_the_profile_is_told_to_programs_and_people(omnireel):
    flag = "--enable-diffusion-pipeline-profiler"
    profile = json.loads(omnireel(*TOY, flag, "--json").out)["profile"]
    assert profile["denoise"].keys() == {"seconds", "calls", "peak_memory_mb"}
    ended = omnireel(*TOY, flag)
    assert re.search(r"^denoise: \d\.\d+ s in 4, peak \d+ MiB$", ended.err, re.MULTILINE)


def test_the_log_can_be_json_lines(omnireel):
    ended = omnireel(*TOY, "-v", "--log-format", "json")
    lines = [json.loads(line) for line in ended.err.splitlines()]
    done = next(line for line in lines if " done: " in line["message"])
    assert done["request_id"].startswith("req_")
    assert done["stage"] == "mux"
    assert done["fields"]["seconds"]["denoise"] > 0


def test_a_pipeline_of_several_stages_makes_a_clip(omnireel):
    size = ("--height", "16", "--width", "16", "--num-frames", "3", "--seed", "5")
    made = json.loads(omnireel("generate", "a kite", "--pipeline", "toy_story", *size, "--json").out)
    assert (made["seed"], made["num_frames"]) == (5, 3)
    assert {"words.denoise", "levels.denoise", "denoise", "mux"} <= made["stage_durations"].keys()
    assert Path(made["path"]).is_file()


def test_a_deploy_file_tells_the_stages(omnireel, tmp_path):
    model = write_language_model(tmp_path / "lm")
    text = f"pipeline: prompt_rewrite\nmodel: toy\nstages:\n- {{name: rewrite, model: {model}}}\n"
    Path("deploy.yaml").write_text(text)
    size = ("--height", "16", "--width", "16", "--num-frames", "3")
    extra = ("--extra-args", '{"rewrite": {"max_new_tokens": 8}}')
    made = json.loads(omnireel("generate", "a kite", "--deploy-config", "deploy.yaml", *size, *extra, "--json").out)
    assert made["recipe"]["prompt"] == made["outputs"]["rewrite"] != "a kite"


def test_a_stage_without_a_model_of_its_own_says_how_to_name_one(omnireel):
    ended = omnireel("generate", "a kite", "--pipeline", "prompt_rewrite")
    assert ended.code == 2
    assert "--stage-N-model DIR" in ended.err
