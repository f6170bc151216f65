"""`omnireel reproduce`: the same frames, other frames, other weights."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from omnireel.api import Omni
from omnireel.media.encode import write_clip
from omnireel.media.recipe import read_recipe
from omnireel.request import DiffusionSamplingParams

CLIP = Path("clip.mp4")


@pytest.fixture
def clip_with(tmp_path):
    """Writes clip.mp4 with its recipe changed in the given fields."""

    def write(**changes):
        with Omni("toy") as omni:
            sampling = DiffusionSamplingParams(height=16, width=16, num_frames=3, seed=5)
            (result,) = omni.generate("a kite", sampling)
        assert result.recipe is not None
        write_clip(result.output, tmp_path / CLIP, recipe=replace(result.recipe, **changes))
        return result.recipe

    return write


def test_the_same_frames_are_made_again(omnireel, clip_with):
    recipe = clip_with()
    ended = omnireel("reproduce", "clip.mp4")
    assert (ended.code, ended.out, ended.err) == (0, "clip-again.mp4\n", "the frames are the same\n")
    assert read_recipe(Path("clip-again.mp4")).frames_digest == recipe.frames_digest


def test_json_says_that_frames_and_sound_are_the_same(omnireel, clip_with):
    clip_with()
    made = json.loads(omnireel("reproduce", "clip.mp4", "-o", "new.mp4", "--json").out)
    assert (made["path"], made["is_same_frames"], made["is_same_sound"]) == ("new.mp4", True, True)


def test_other_sound_is_told(omnireel, clip_with):
    clip_with(wave_digest="sha256:0")
    ended = omnireel("reproduce", "clip.mp4")
    assert (ended.code, ended.err) == (0, "the frames are the same; the sound differs\n")


def test_other_frames_are_an_error_that_names_what_differs_and_the_clip_is_kept(omnireel, clip_with):
    recipe = clip_with(frames_digest="sha256:0")
    clip_with(frames_digest="sha256:0", versions={**recipe.versions, "torch": "1.0"})
    ended = omnireel("reproduce", "clip.mp4", "--json")
    error = json.loads(ended.out)["error"]
    assert (ended.code, error["code"]) == (4, "not_reproduced")
    assert error["details"]["differences"] == [f"torch 1.0 then, {recipe.versions['torch']} now"]
    assert Path("clip-again.mp4").exists()


def test_other_frames_where_nothing_recorded_differs(omnireel, clip_with):
    clip_with(frames_digest="sha256:0")
    assert "nothing that a recipe records" in omnireel("reproduce", "clip.mp4").err


def test_other_weights_are_an_error_before_anything_is_made(omnireel, clip_with):
    clip_with(weights_digest="sampled-sha256:0")
    ended = omnireel("reproduce", "clip.mp4")
    assert ended.code == 3
    assert "--ignore-weights" in ended.err
    assert not Path("clip-again.mp4").exists()


def test_other_weights_may_be_ignored(omnireel, clip_with):
    clip_with(weights_digest="sampled-sha256:0")
    assert omnireel("reproduce", "clip.mp4", "--ignore-weights").code == 0


def test_a_model_that_is_only_a_name_asks_for_its_directory(omnireel, clip_with):
    clip_with(model="MiniMax-H3")
    ended = omnireel("reproduce", "clip.mp4")
    assert ended.code == 2
    assert "--model" in ended.err


def test_settings_of_the_recipe_hold_unless_a_flag_says_otherwise(omnireel, clip_with):
    recipe = clip_with()
    clip_with(engine={**recipe.engine, "dtype": "checkpoint"})
    kept = json.loads(omnireel("reproduce", "clip.mp4", "--json").out)
    said = json.loads(omnireel("reproduce", "clip.mp4", "--json", "--dtype", "float32").out)
    assert (kept["recipe"]["engine"]["dtype"], said["recipe"]["engine"]["dtype"]) == ("checkpoint", "float32")


def test_a_device_that_is_not_here_is_replaced_by_what_is(omnireel, clip_with):
    recipe = clip_with()
    clip_with(engine={**recipe.engine, "device": "npu"})
    assert omnireel("reproduce", "clip.mp4").code == 0


@pytest.mark.parametrize("name", ["missing.mp4", "."])
def test_a_file_that_is_no_clip_is_refused(omnireel, name):
    ended = omnireel("reproduce", name)
    assert ended.code == 2
    assert name in ended.err


@pytest.mark.parametrize("model", ["somebody/repository", "/etc", "../up", "~root", ".", ""])
def test_a_recipe_opens_no_path_and_no_repository(omnireel, clip_with, monkeypatch, model):
    monkeypatch.setattr("omnireel.models.discover.snapshot", lambda *_: pytest.fail("the hub was asked"))
    clip_with(model=model)
    ended = omnireel("reproduce", "clip.mp4")
    assert ended.code == 2
    assert "--model" in ended.err
    assert omnireel("reproduce", "clip.mp4", "--model", "toy").code == 0


def test_a_recipe_settles_only_what_moves_a_result(omnireel, clip_with):
    recipe = clip_with()
    clip_with(engine={**recipe.engine, "log_level": "debug", "model": "mini-h3", "use_modelscope": 5})
    assert omnireel("reproduce", "clip.mp4").err == "the frames are the same\n"


@pytest.mark.parametrize(
    "told",
    [
        {"diffusion_attention_backend": "flash_attn_3_hub"},
        {"diffusion_attention_config": {"per_role": {"self": {"backend": "FLASH_ATTN_HUB"}}}},
    ],
)
def test_a_recipe_makes_nobody_download_code(omnireel, clip_with, told):
    recipe = clip_with()
    clip_with(engine={**recipe.engine, **told})
    ended = omnireel("reproduce", "clip.mp4")
    assert ended.code == 2
    assert "--diffusion-attention-backend FLASH_ATTN_" in ended.err
    assert omnireel("reproduce", "clip.mp4", "--diffusion-attention-backend", "TORCH_SDPA").code == 0


def test_the_speed_of_a_device_that_is_not_here_is_not_asked_for(omnireel, clip_with):
    recipe = clip_with()
    engine = {**recipe.engine, "device": "npu", "fused_kernels": "on"}
    clip_with(engine=engine)
    made = json.loads(omnireel("reproduce", "clip.mp4", "--json").out)
    assert "fused_kernels" not in made["recipe"]["engine"]
    clip_with(engine={**engine, "device": "cpu"})
    made = json.loads(omnireel("reproduce", "clip.mp4", "--json").out)
    assert made["recipe"]["engine"]["fused_kernels"] == "on"


@pytest.mark.parametrize("change", [{"num_threads": 10**9}, {"num_threads": "x"}, {"dtype": []}])
def test_settings_that_no_engine_had_are_the_clips_fault(omnireel, clip_with, change):
    recipe = clip_with()
    clip_with(engine={**recipe.engine, **change})
    ended = omnireel("reproduce", "clip.mp4")
    assert ended.code == 2
    assert "clip.mp4: has a damaged recipe" in ended.err


def test_a_clip_is_made_again_by_one_model_alone(omnireel, clip_with):
    clip_with()
    ended = omnireel("reproduce", "clip.mp4", "--pipeline", "toy_story")
    assert ended.code == 3
    assert "by the model of its last stage alone" in ended.err
