"""Arrays of one toy become the request of the next."""

from __future__ import annotations

import numpy as np

from omnireel.models.toy_stages.handover import tensors, words_alone
from omnireel.request import GenerationRequest, MediaOutput

REQUEST = GenerationRequest(prompt="a kite")


def test_the_first_stage_is_asked_what_the_user_asked():
    assert words_alone(REQUEST, {}) is REQUEST


def test_arrays_are_handed_on_when_there_are_any():
    made = np.arange(3)
    assert tensors(REQUEST, {0: MediaOutput(latents={"words": made})}).tensors["words"] is made
    assert tensors(REQUEST, {}).tensors == {}
