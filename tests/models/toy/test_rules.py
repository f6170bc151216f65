"""The toy takes what a real model takes, on a smaller scale."""

from __future__ import annotations

import math

import pytest

from omnireel.errors import InvalidRequest
from omnireel.models.discover import find_checkpoint
from omnireel.models.toy.rules import admit
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaInput, MediaKind

TOY = find_checkpoint("toy")


def admitted(prompt="a kite", media=(), **values):
    return admit(GenerationRequest(prompt=prompt, media=media, sampling=DiffusionSamplingParams(**values)), TOY)


def test_everything_is_settled_without_a_word():
    work = admitted()
    assert (work.height, work.width, work.num_frames, work.fps) == (32, 48, 24, 24.0)
    assert (work.num_inference_steps, work.num_steps, work.task, work.output_type) == (5, 4, "t2va", "frames")
    assert work.settings == {"step_seconds": 0.0, "fail": None}


def test_what_was_asked_for_is_kept():
    work = admitted(height=8, width=1024, num_frames=240, num_inference_steps=200, seed=-1, fps=24)
    assert (work.height, work.width, work.num_frames, work.num_steps, work.seed) == (8, 1024, 240, 199, -1)


def test_seconds_count_when_frames_are_not_given():
    assert (admitted(seconds=2).num_frames, admitted(seconds=2, num_frames=5).num_frames) == (48, 5)


def test_cost_grows_with_the_work():
    assert admitted(num_frames=48).cost > admitted(num_frames=24).cost > admitted(num_inference_steps=2).cost


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("height", 0),
        ("height", 6),
        ("height", 9),
        ("width", 1026),
        ("width", math.nan),
        ("num_frames", 0),
        ("num_frames", 241),
        ("seconds", 0),
        ("seconds", 10.1),
        ("seconds", math.nan),
        ("num_inference_steps", 1),
        ("num_inference_steps", 201),
        ("seed", 2**63),
        ("seed", math.nan),
        ("fps", 25),
        ("fps", math.nan),
        ("task", ""),
        ("task", "i2v"),
        ("output_type", "gif"),
        ("generator_device", "cuda"),
        ("num_outputs_per_prompt", 2),
        ("num_outputs_per_prompt", 0),
        ("aspect_ratio", "16:9"),
        ("short_edge", 64),
        ("flow_shift", 3.0),
        ("guidance_scale", math.nan),
        ("negative_prompt", "rain"),
    ],
)
def test_what_is_not_allowed_names_its_field(field, value):
    with pytest.raises(InvalidRequest) as raised:
        admitted(**{field: value})
    assert raised.value.details["field"] == field


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"step_seconds": -1}, "extra_args.step_seconds"),
        ({"step_seconds": math.nan}, "extra_args.step_seconds"),
        ({"fail": "step:"}, "extra_args.fail"),
        ({"fail": "5"}, "extra_args.fail"),
        ({"fail": ["oom"]}, "extra_args.fail"),
        ({"colour": "red"}, "extra_args.colour"),
    ],
)
def test_its_own_settings_are_checked(extra, field):
    with pytest.raises(InvalidRequest) as raised:
        admitted(extra_args=extra)
    assert raised.value.details["field"] == field


@pytest.mark.parametrize("prompt", ["", " \t", None])
def test_an_empty_prompt_is_refused(prompt):
    with pytest.raises(InvalidRequest, match="prompt"):
        admitted(prompt)


def test_media_are_refused():
    with pytest.raises(InvalidRequest, match="media"):
        admitted(media=(MediaInput(kind=MediaKind.IMAGE, role="first_frame"),))
