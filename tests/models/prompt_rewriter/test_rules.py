"""What may be asked of the rewriter."""

from __future__ import annotations

import pytest

from omnireel.errors import InvalidRequest, UnknownModel
from omnireel.models.discover import find_checkpoint
from omnireel.models.prompt_rewriter.rules import INSTRUCTION, admit
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaInput, MediaKind


def admitted(tmp_path, prompt="a kite", media=(), **extra):
    checkpoint = find_checkpoint(str(tmp_path), architecture="PromptRewriter")
    sampling = DiffusionSamplingParams(extra_args=extra)
    return admit(GenerationRequest(prompt=prompt, media=media, sampling=sampling), checkpoint)


def test_everything_is_settled_without_a_word(tmp_path):
    work = admitted(tmp_path)
    assert (work.num_steps, work.output_type) == (256, "text")
    assert work.settings == {"temperature": 0.0, "instruction": INSTRUCTION}


def test_what_was_asked_for_is_kept(tmp_path):
    work = admitted(tmp_path, max_new_tokens=3, temperature=0.5, instruction="shout")
    assert (work.num_steps, work.settings) == (3, {"temperature": 0.5, "instruction": "shout"})


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("extra_args.rewrite.top", {"top": 1}),
        ("extra_args.rewrite.max_new_tokens", {"max_new_tokens": 0}),
        ("extra_args.rewrite.temperature", {"temperature": -1}),
        ("extra_args.rewrite.instruction", {"instruction": 5}),
        ("prompt", {"prompt": ""}),
        ("media", {"media": (MediaInput(kind=MediaKind.IMAGE, role="first_frame"),)}),
    ],
)
def test_anything_else_is_refused_by_name(field, values, tmp_path):
    with pytest.raises(InvalidRequest, match=f"^{field}: "):
        admitted(tmp_path, **values)


def test_a_model_that_makes_clips_is_no_rewriter():
    with pytest.raises(UnknownModel) as told:
        find_checkpoint("mini-h3", architecture="PromptRewriter")
    assert "--stage-N-model DIR" in told.value.hint
