"""What the stages of toy_story take."""

from __future__ import annotations

import pytest

from omnireel.errors import InvalidRequest
from omnireel.models.discover import admit, find_checkpoint
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaInput, MediaKind


def admitted(stage, prompt="a kite", media=(), **values):
    checkpoint = find_checkpoint(f"toy-{stage}", architecture=f"Toy{stage.title()}")
    request = GenerationRequest(prompt=prompt, media=media, sampling=DiffusionSamplingParams(**values))
    return admit(request, checkpoint)


@pytest.mark.parametrize("stage", ["words", "levels", "scene"])
def test_a_stage_reads_what_is_for_it(stage):
    work = admitted(stage, seed=3, extra_args={"num_words": 4, stage: {"fail": 2}})
    assert (work.num_steps, work.seed, work.settings) == (4, 3, {"step_seconds": 0.0, "fail": 2})


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("extra_args.speed", {"extra_args": {"speed": 1}}),
        ("extra_args.scene.speed", {"extra_args": {"scene": {"speed": 1}}}),
        ("extra_args.scene.fail", {"extra_args": {"scene": {"fail": -1}}}),
        ("extra_args.scene.step_seconds", {"extra_args": {"scene": {"step_seconds": "1"}}}),
        ("extra_args.num_words", {"extra_args": {"num_words": 0}}),
        ("height", {"height": 9}),
        ("num_frames", {"num_frames": 0}),
        ("output_type", {"output_type": "text"}),
        ("prompt", {"prompt": " "}),
        ("media", {"media": (MediaInput(kind=MediaKind.IMAGE, role="first_frame"),)}),
    ],
)
def test_anything_else_is_refused_by_name(field, values):
    with pytest.raises(InvalidRequest, match=f"^{field}: "):
        admitted("scene", **values)
