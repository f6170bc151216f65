"""`omnireel models`."""

import json

from omnireel.errors import BadCheckpoint
from omnireel.models import discover


def test_the_toy_is_listed_with_its_tasks(omnireel):
    models = json.loads(omnireel("models", "--json").out)["models"]
    toy = next(model for model in models if model["name"] == "toy")
    assert (toy["tasks"], toy["builtin"]) == (["t2va"], {"toy": None})


def test_a_built_in_model_that_is_broken_says_why(omnireel, monkeypatch):
    def broken(name):
        raise BadCheckpoint("config.json", "is missing")

    monkeypatch.setattr(discover, "find_checkpoint", broken)
    assert "toy (cannot be served: config.json: is missing)" in omnireel("models").out


def test_people_get_one_paragraph_a_model(omnireel):
    ended = omnireel("models")
    paragraphs = ended.out.strip().split("\n\n")
    assert ended.code == 0
    told = json.loads(omnireel("models", "--json").out)
    assert len(paragraphs) == len(told["models"]) + len(told["pipelines"])


def test_pipelines_are_listed_with_their_stages(omnireel):
    pipelines = json.loads(omnireel("models", "--json").out)["pipelines"]
    assert [pipeline["name"] for pipeline in pipelines] == ["prompt_rewrite", "toy_story"]
    assert pipelines[0]["stages"][0] == {"name": "rewrite", "type": "ar"}
    assert "  stages      rewrite (ar), generate (diffusion)" in omnireel("models").out
