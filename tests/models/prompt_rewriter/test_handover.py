"""The words go alone to the rewriter, and come back into the whole request."""

from __future__ import annotations

import logging

import pytest

from omnireel.models.prompt_rewriter.handover import rewritten, words_alone
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaInput, MediaKind, MediaOutput

REQUEST = GenerationRequest(
    prompt="a kite",
    media=(MediaInput(kind=MediaKind.IMAGE, role="first_frame"),),
    sampling=DiffusionSamplingParams(seed=3, height=64, extra_args={"rewrite": {"max_new_tokens": 8}, "task": "fl2va"}),
)


def test_the_rewriter_gets_words_seed_and_its_own_options():
    asked = words_alone(REQUEST, {})
    assert (asked.prompt, asked.media, asked.request_id) == ("a kite", (), REQUEST.request_id)
    assert asked.sampling == DiffusionSamplingParams(seed=3, extra_args={"max_new_tokens": 8})


def test_the_clip_is_asked_for_in_other_words():
    asked = rewritten(REQUEST, {0: MediaOutput(text=" a red kite over the sea\n")})
    assert (asked.prompt, asked.media) == ("a red kite over the sea", REQUEST.media)
    assert asked.sampling == DiffusionSamplingParams(seed=3, height=64, extra_args={"task": "fl2va"})


def test_before_the_words_are_known_the_prompt_is_the_users():
    assert rewritten(REQUEST, {}).prompt == "a kite"


@pytest.mark.parametrize("text", ["", " \n", None])
def test_no_words_leave_the_prompt_as_it_is_and_are_told(text, caplog):
    with caplog.at_level(logging.WARNING, "omnireel"):
        assert rewritten(REQUEST, {0: MediaOutput(text=text)}).prompt == "a kite"
    assert "stays as it is" in caplog.text
