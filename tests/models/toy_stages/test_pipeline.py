"""The three toys by hand: each follows from the one before, and rows that come in pieces make the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omnireel.models.discover import admit, find_checkpoint
from omnireel.models.toy_stages.pipeline import ToyLevels, ToyScene, ToyStage, ToyWords
from omnireel.request import DiffusionSamplingParams, GenerationRequest

WORDS = np.array([0.25, 0.5, 0.75])


def work(stage, tensors=None, **values):
    sampling = DiffusionSamplingParams(**{"seed": 1, "height": 8, "width": 8, "num_frames": 4, **values})
    admitted = admit(
        GenerationRequest(prompt="a kite", sampling=sampling),
        find_checkpoint(f"toy-{stage}", architecture=f"Toy{stage.title()}"),
    )
    return replace(admitted, tensors=tensors or {})


def ran(pipeline: ToyStage, workload) -> Any:
    state = pipeline.prepare(workload, pipeline.encode(workload))
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
    return pipeline.decode(state)


def test_words_follow_from_prompt_and_seed():
    first = ran(ToyWords(), work("words")).latents["words"]
    assert first.shape == (6,)
    assert np.array_equal(ran(ToyWords(), work("words")).latents["words"], first)
    assert not np.array_equal(ran(ToyWords(), work("words", seed=2)).latents["words"], first)


def test_colours_follow_from_words_and_each_other():
    levels = ran(ToyLevels(), work("levels", {"words": WORDS})).latents["levels"]
    assert np.allclose(levels, [[0.5, 0.75, 0.0], [0.75, 0.375, 0.5], [0.125, 0.6875, 0.5]])


def test_frames_show_the_colours_in_turn():
    levels = np.array([[0.0, 0.5, 1.0], [1.0, 0.0, 0.0]])
    made = ran(ToyScene(), work("scene", {"levels": levels}))
    assert made.frames[:, 0, 0].tolist() == [[0, 128, 255], [255, 0, 0]] * 2
    assert made.wave.shape == (2, round(4 / 24 * 32_000))
    latent = ran(ToyScene(), work("scene", {"levels": levels}, output_type="latent"))
    assert latent.latents["levels"].tolist() == [[0, 128, 255], [255, 0, 0]]


def test_rows_that_come_in_pieces_make_the_same():
    pipeline, workload = ToyLevels(), work("levels", {"words": WORDS[:1]})
    state = pipeline.prepare(workload, pipeline.encode(workload))
    for rest in (WORDS[1:2], WORDS[2:]):
        while state.steps_done < state.num_steps:
            state = pipeline.step(state)
        pipeline.take(state, {"words": rest})
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
    whole = ran(ToyLevels(), work("levels", {"words": WORDS})).latents["levels"]
    made: Any = pipeline.decode(state)
    assert np.array_equal(made.latents["levels"], whole)


def test_a_step_fails_where_it_is_told_to():
    told = replace(work("words"), settings={"step_seconds": 0.0, "fail": 2})
    with pytest.raises(RuntimeError, match="in step 2"):
        ran(ToyWords(), told)
