"""Every rule of a request, with what passes and what is refused."""

from __future__ import annotations

import math

import pytest

from omnireel.errors import InvalidRequest
from omnireel.models.discover import admit
from omnireel.models.minimax_h3.facts import FACTS
from omnireel.models.protocol import Checkpoint
from omnireel.request import DiffusionSamplingParams, GenerationRequest, Workload

CHECKPOINT = Checkpoint(name="released", facts=FACTS, path=None)


def admitted(prompt: object = "a red ball", **sampling: object) -> Workload:
    request = GenerationRequest(prompt=prompt, sampling=DiffusionSamplingParams(**sampling))  # type: ignore[arg-type]
    return admit(request, CHECKPOINT)


def test_a_bare_prompt_gets_the_released_defaults():
    work = admitted()
    assert (work.task, work.height, work.width, work.num_frames, work.fps) == ("t2va", 768, 1344, 209, 24.0)
    assert (work.num_inference_steps, work.num_steps) == (50, 49)
    assert work.settings == {"flow_shift": 12.0, "audio_flow_shift": 3.0}
    assert 0 <= work.seed < 2**31


ACCEPTED = [
    ({"height": 768, "width": 1344}, ("width", 1344)),
    ({"height": 32, "width": 128}, ("width", 128)),
    ({"aspect_ratio": "9:16"}, ("height", 1344)),
    ({"short_edge": 384}, ("width", 672)),
    ({"short_edge": 544, "aspect_ratio": "1:1"}, ("height", 544)),
    ({"num_frames": 96}, ("num_frames", 107)),
    ({"num_frames": 360}, ("num_frames", 362)),
    ({"seconds": 4}, ("num_frames", 107)),
    ({"seconds": 8.7}, ("num_frames", 209)),
    ({"seconds": 15.0}, ("num_frames", 362)),
    ({"seconds": 99, "num_frames": 124}, ("num_frames", 124)),
    ({"fps": 24}, ("fps", 24.0)),
    ({"num_inference_steps": 2}, ("num_steps", 1)),
    ({"num_inference_steps": 200}, ("num_steps", 199)),
    ({"seed": -(2**63)}, ("seed", -(2**63))),
    ({"seed": 2**63 - 1}, ("seed", 2**63 - 1)),
    ({"task": "t2va"}, ("task", "t2va")),
    ({"guidance_scale": 1.0}, ("task", "t2va")),
    ({"generator_device": "cpu"}, ("task", "t2va")),
    ({"output_type": "latent"}, ("output_type", "latent")),
    ({"extra_args": {"duration": 6, "aspect_ratio": "1:1"}}, ("num_frames", 158)),
    ({"extra_args": {"seed": 5}, "seed": 5}, ("seed", 5)),
    ({"extra_args": {"seed": None}, "seed": 5}, ("seed", 5)),
]

REFUSED = [
    ({"height": 100, "width": 128}, "height", "multiple of 32"),
    ({"height": 96}, "width", "together"),
    ({"width": 96}, "height", "together"),
    ({"height": 32, "width": 160}, "size", "1:4"),
    ({"height": 320, "width": 32}, "size", "1:4"),
    ({"height": 0, "width": 32}, "height", "from 32"),
    ({"height": 16384, "width": 16384}, "size", "1048576"),
    ({"height": 768, "width": 768, "aspect_ratio": "1:1"}, "aspect_ratio", "settle"),
    ({"height": 768, "width": 768, "short_edge": 768}, "short_edge", "settle"),
    ({"short_edge": 100}, "short_edge", "multiple of 32"),
    ({"aspect_ratio": "2:1"}, "aspect_ratio", "16:9"),
    ({"num_frames": 95}, "num_frames", "from 96 to 360"),
    ({"num_frames": 361}, "num_frames", "from 96 to 360"),
    ({"num_frames": 100.5}, "num_frames", "whole number"),
    ({"seconds": 3.9}, "seconds", "from 4 to 15"),
    ({"seconds": 15.1}, "seconds", "from 4 to 15"),
    ({"seconds": math.nan}, "seconds", "from 4 to 15"),
    ({"seconds": math.nan, "num_frames": 124}, "seconds", "finite"),
    ({"fps": 25}, "fps", "24"),
    ({"fps": math.nan}, "fps", "24"),
    ({"num_inference_steps": 1}, "num_inference_steps", "from 2 to 200"),
    ({"num_inference_steps": 201}, "num_inference_steps", "from 2 to 200"),
    ({"seed": 2**63}, "seed", "whole number"),
    ({"seed": 1.5}, "seed", "whole number"),
    ({"task": "fl2va"}, "task", "no picture came"),
    ({"task": "ref2va"}, "task", "no reference came"),
    ({"task": "t2v"}, "task", "t2va or fl2va or ref2va"),
    ({"task": ["t2va"]}, "task", "t2va or fl2va or ref2va"),
    ({"guidance_scale": 5.0}, "guidance_scale", "distilled"),
    ({"guidance_scale": math.nan}, "guidance_scale", "distilled"),
    ({"guidance_scale_2": 0}, "guidance_scale_2", "distilled"),
    ({"true_cfg_scale": 4}, "true_cfg_scale", "distilled"),
    ({"negative_prompt": "blurry"}, "negative_prompt", "distilled"),
    ({"negative_prompt": ""}, "negative_prompt", "distilled"),
    ({"generator_device": "cuda"}, "generator_device", "cpu"),
    ({"flow_shift": 0}, "flow_shift", "from 0.01"),
    ({"flow_shift": math.inf}, "flow_shift", "from 0.01"),
    ({"audio_flow_shift": -1}, "audio_flow_shift", "from 0.01"),
    ({"output_type": "gif"}, "output_type", "frames"),
    ({"num_outputs_per_prompt": 2}, "num_outputs_per_prompt", "from 1 to 1"),
    ({"extra_args": {"durration": 6}}, "extra_args.durration", "duration"),
    ({"extra_args": ["duration"]}, "extra_args", "names and values"),
    ({"extra_args": {"duration": [6]}}, "extra_args.duration", "text or a number"),
    ({"extra_args": {"duration": 3}}, "seconds", "from 4 to 15"),
    ({"extra_args": {"seed": 5}, "seed": 6}, "extra_args.seed", "was given too"),
]


@pytest.mark.parametrize(("sampling", "expected"), ACCEPTED)
def test_accepted(sampling, expected):
    name, value = expected
    work = admitted(**sampling)
    assert {"height": work.height, "width": work.width, "num_frames": work.num_frames, "fps": work.fps,
            "num_steps": work.num_steps, "seed": work.seed, "task": work.task, "output_type": work.output_type}[name] == value  # fmt: skip


@pytest.mark.parametrize(("sampling", "field", "allowed"), REFUSED)
def test_refused(sampling, field, allowed):
    with pytest.raises(InvalidRequest, match=allowed) as raised:
        admitted(**sampling)
    assert raised.value.details["field"] == field
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("prompt", ["", "  \n", None, 5])
def test_a_prompt_must_say_something(prompt):
    with pytest.raises(InvalidRequest, match="prompt"):
        admitted(prompt)


def test_settings_are_part_of_the_workload():
    assert admitted(flow_shift=6, audio_flow_shift=2).settings == {"flow_shift": 6.0, "audio_flow_shift": 2.0}


def test_requests_of_one_shape_may_share_a_batch_and_others_not():
    assert admitted(seed=1).batch_key == admitted("other", seed=2).batch_key
    assert admitted().batch_key != admitted(num_frames=124).batch_key


def test_the_cost_is_that_of_the_published_count():
    # 8.19 PFLOP a step at 1344x768, 209 frames.
    assert admitted(num_inference_steps=2).cost == pytest.approx(8.19e15, rel=0.01)
