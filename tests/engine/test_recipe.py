"""A recipe is made of a finished request and becomes the same request again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.engines import request

from omnireel.engine.recipe import SCHEMA, build_recipe, request_from_recipe
from omnireel.errors import MediaUnreadable
from omnireel.media.digest import frames_digest
from omnireel.media.recipe import recipe_from_json, recipe_to_json
from omnireel.models.discover import admit, find_checkpoint
from omnireel.request import MediaOutput, OutputSpec

FRAMES = np.arange(3 * 2 * 2 * 3, dtype=np.uint8).reshape(3, 2, 2, 3)
OUTPUT = MediaOutput(frames=FRAMES, fps=24.0)


def workload(**values):
    return admit(request(**values), find_checkpoint("toy"))


def recipe(work=None, output=OUTPUT):
    return build_recipe(work or workload(), output, model="toy", weights_digest="d", engine={"device": "cpu"})


def test_it_holds_every_settled_value():
    made = recipe(workload(num_frames=5, seed=-7, num_inference_steps=3))
    assert made.sampling == {
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "fps": 24.0,
        "num_inference_steps": 3,
        "seed": -7,
        "task": "t2va",
        "extra_args": {"step_seconds": 0.0},
    }
    assert (made.model, made.weights_digest, made.prompt, made.engine) == ("toy", "d", "a kite", {"device": "cpu"})
    assert made.versions.keys() == {"omnireel", "torch", "python"}
    assert (made.frames_digest, made.wave_digest) == (frames_digest(FRAMES), "")


def test_settings_that_are_fields_are_stored_as_fields():
    work = replace(workload(), settings={"flow_shift": 12.0, "audio_flow_shift": 3.0})
    sampling = recipe(work).sampling
    assert (sampling["flow_shift"], sampling["audio_flow_shift"]) == (12.0, 3.0)
    assert "extra_args" not in sampling


def test_the_request_it_becomes_is_settled_the_same_way():
    work = workload(extra_args={"step_seconds": 0.25}, num_frames=7)
    made = recipe_from_json(recipe_to_json(recipe(work)), name="clip.mp4")
    again = admit(request_from_recipe(made, OutputSpec()), find_checkpoint("toy"))
    assert replace(again, request_id=work.request_id) == work


def test_the_request_goes_where_it_is_told():
    output = OutputSpec(path=Path("again.mp4"))
    assert request_from_recipe(recipe(), output).output is output


def test_latents_have_no_recipe():
    assert recipe(output=MediaOutput(latents={})) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": SCHEMA + 1}, f"is of schema {SCHEMA + 1}, this version reads {SCHEMA}"),
        ({"schema": "1"}, "is of schema '1'"),
        ({"sampling": {"seed": 1, "colour": "red"}}, "unknown settings colour"),
        ({"sampling": [1]}, "damaged"),
        ({"prompt": None}, "damaged"),
    ],
)
def test_a_recipe_that_this_version_cannot_read_is_refused(changes, words):
    with pytest.raises(MediaUnreadable, match=words):
        request_from_recipe(replace(recipe(), **changes), OutputSpec())
