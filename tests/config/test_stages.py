"""Which stages there are is a setting like any other."""

from __future__ import annotations

import pytest

from omnireel.config import resolve
from omnireel.errors import BadSetting
from omnireel.models.discover import topology_of


@pytest.mark.parametrize("place", ["flag", "variable", "file"])
def test_a_pipeline_is_chosen_by_name_from_anywhere(place, tmp_path):
    path = tmp_path / "deploy.yaml"
    path.write_text("pipeline: toy_story\nstages: [{stage_id: 2, name: scene, dtype: float32}]\n")
    flags = {"flag": {"pipeline": "toy_story"}, "variable": {}, "file": {"deploy_config": path}}[place]
    environ = {"OMNIREEL_PIPELINE": "toy_story"} if place == "variable" else {}
    config = resolve(flags, environ, topology=topology_of)
    assert [stage.facts.name for stage in config.stages] == ["words", "levels", "scene"]
    assert [stage.model.model for stage in config.stages] == ["toy-words", "toy-levels", "toy-scene"]
    assert config.stages[2].model.dtype == ("float32" if place == "file" else "auto")


def test_without_a_name_the_model_is_alone():
    assert [stage.facts.name for stage in resolve({}, {}, topology=topology_of).stages] == ["diffusion"]


def test_an_unknown_pipeline_names_its_line_and_those_that_there_are(tmp_path):
    path = tmp_path / "deploy.yaml"
    path.write_text("dtype: float32\npipeline: toy_tale\n")
    with pytest.raises(BadSetting, match="prompt_rewrite or toy_story") as told:
        resolve({"deploy_config": path}, {}, topology=topology_of)
    assert f"{path}:2" in told.value.message


def test_a_stage_of_its_own_type_refuses_what_it_does_not_have():
    with pytest.raises(Exception, match=r"stage 0 \(ar\) does not have cache_backend"):
        resolve({"pipeline": "toy_story", "stage_0_cache_backend": "none"}, {}, topology=topology_of)
