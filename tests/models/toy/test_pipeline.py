"""The toy is deterministic, honours what was asked, and fails where it is told to."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.engines import ticket

from omnireel.errors import InvalidRequest
from omnireel.models.toy.pipeline import SAMPLE_RATE_HZ, ToyPipeline


def made(**values):
    pipeline, work = ToyPipeline(), ticket(**values).workload
    state = pipeline.prepare(work, pipeline.encode(work))
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
    return pipeline.decode(state)


def test_the_clip_has_the_size_that_was_asked_for():
    output = made(height=8, width=10, num_frames=6)
    assert output.frames is not None
    assert output.wave is not None
    assert (output.frames.shape, output.frames.dtype) == ((6, 8, 10, 3), np.uint8)
    assert (output.wave.shape, output.wave.dtype) == ((2, SAMPLE_RATE_HZ // 4), np.float32)
    assert np.abs(output.wave).max() <= 1


def test_frames_move():
    frames = made().frames
    assert frames is not None
    assert (frames[0] != frames[1]).any()


@pytest.mark.parametrize("changes", [{"prompt": "a boat"}, {"seed": 2}, {"seed": -(2**63)}, {"num_inference_steps": 3}])
def test_prompt_seed_and_steps_change_the_clip(changes):
    assert (made().frames != made(**changes).frames).any()


def test_the_same_words_make_the_same_clip():
    first, again = made(seed=7), made(seed=7)
    assert (first.frames == again.frames).all()
    assert (first.wave == again.wave).all()


def test_latents_come_instead_of_frames():
    output = made(output_type="latent")
    assert output.latents is not None
    assert (list(output.latents), output.frames, output.wave) == (["level"], None, None)


def test_a_preview_is_a_frame():
    pipeline, work = ToyPipeline(), ticket().workload
    preview = pipeline.preview(pipeline.prepare(work, pipeline.encode(work)))
    assert preview is not None
    assert preview.shape == (16, 16, 3)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ("encode", RuntimeError),
        ("prepare", RuntimeError),
        ("step:4", RuntimeError),
        ("decode", RuntimeError),
        ("oom", MemoryError),
        ("client", InvalidRequest),
    ],
)
def test_it_fails_where_it_is_told_to(failure, error):
    with pytest.raises(error):
        made(extra_args={"fail": failure})


def test_a_step_that_never_comes_never_fails():
    assert made(extra_args={"fail": "step:5"}).frames is not None
