"""/v1/models."""

import pytest
from tests.support.language_model import write_language_model
from tests.support.mini import MINI
from tests.support.servers import running

pytestmark = pytest.mark.slow


def test_the_served_model_is_listed_and_found(toy):
    (model,) = toy.http.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["tasks"]) == ("toy", "model", ["t2va"])
    assert toy.http.get("/v1/models/toy").json() == model
    assert toy.http.get("/v1/models/sora-2").status_code == 404


def test_names_are_those_that_were_given_and_no_folder_is_told(tmp_path):
    with running(tmp_path, "--served-model-name", "a,b/c", model=str(MINI), is_ready=False) as server:
        answer = server.http.get("/v1/models")
        assert [model["id"] for model in answer.json()["data"]] == ["a", "b/c"]
        assert str(MINI) not in answer.text
        assert server.http.get("/v1/models/b/c").status_code == 200
        assert server.http.post("/v1/videos", json={"prompt": "x", "model": "mini-h3"}).status_code == 404


def test_a_pipeline_of_stages_is_served_by_its_name(tmp_path):
    language_model = write_language_model(tmp_path / "lm")
    with running(tmp_path, "--pipeline", "prompt_rewrite", "--stage-0-model", str(language_model)) as server:
        names = [model["id"] for model in server.http.get("/v1/models").json()["data"]]
        assert names == ["prompt_rewrite", "toy"]
        rewrite = {"rewrite": {"max_new_tokens": 8}}
        job = server.create(model="prompt_rewrite", size="48x32", num_frames=3, extra_params=rewrite)
        done = server.ended(job["id"])
        assert done["status"] == "completed", done
        assert {"rewrite.denoise", "denoise"} <= done["stage_durations"].keys()
