"""Token by token is what transformers' own generate gives; the end, thoughts, draws and limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.language_model import write_language_model

from omnireel.attention import AttentionConfig
from omnireel.errors import BadCheckpoint, InvalidRequest
from omnireel.models.discover import admit, find_checkpoint
from omnireel.models.prompt_rewriter.pipeline import PromptRewriter
from omnireel.models.protocol import BuildContext
from omnireel.platforms import find_device
from omnireel.request import DiffusionSamplingParams, GenerationRequest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_language_model(tmp_path_factory.mktemp("lm") / "tiny")


def built(folder) -> PromptRewriter:
    checkpoint = find_checkpoint(str(folder), architecture="PromptRewriter")
    platform, _ = find_device("cpu")
    return PromptRewriter.build(
        BuildContext(
            checkpoint=checkpoint, platform=platform, device="cpu", dtype="float32", attention=AttentionConfig()
        )
    )


@pytest.fixture(scope="module")
def pipeline(folder):
    return built(folder)


def work(folder, prompt="a kite", seed=1, **extra):
    sampling = DiffusionSamplingParams(seed=seed, extra_args={"max_new_tokens": 12, **extra})
    checkpoint = find_checkpoint(str(folder), architecture="PromptRewriter")
    return admit(GenerationRequest(prompt=prompt, sampling=sampling), checkpoint)


def ran(pipeline, workload):
    state = pipeline.prepare(workload, pipeline.encode(workload))
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
    return state


def test_it_says_what_generate_of_transformers_says(folder, pipeline):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    workload = work(folder)
    talk = [
        {"role": "system", "content": workload.settings["instruction"]},
        {"role": "user", "content": "a kite"},
    ]
    ids = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    expected = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    state = ran(pipeline, workload)
    assert state.said == expected.tolist()
    assert len(set(state.said)) > 2
    assert pipeline.decode(state).text == tokenizer.decode(expected, skip_special_tokens=True).strip()
    assert pipeline.weights_digest.startswith("sampled-sha256:")


def test_the_end_token_ends_it_and_is_not_said(folder, pipeline):
    said = ran(pipeline, work(folder)).said
    stopping = built(folder)
    stopping._stops = frozenset([said[4]])
    state = ran(stopping, work(folder))
    assert state.said == said[: said.index(said[4])]
    assert state.steps_done == state.num_steps == len(state.said) + 1


def test_draws_follow_the_seed(folder, pipeline):
    def said(seed):
        return ran(pipeline, work(folder, seed=seed, temperature=2.0)).said

    assert said(1) == said(1) != said(2)


def test_without_a_chat_template_the_instruction_stands_before_the_prompt(tmp_path):
    folder = write_language_model(tmp_path / "plain", is_chat=False)
    pipeline = built(folder)
    ids = pipeline.encode(work(folder, instruction="Say it.")).ids[0]
    assert bytes(pipeline._tokenizer.decode(ids), "utf-8") == b"Say it.\n\na kite\n\n"


def test_thoughts_are_left_out(folder, pipeline):
    state = ran(pipeline, work(folder))
    state.said = pipeline._tokenizer("well </think> a red kite ")["input_ids"]
    assert pipeline.decode(state).text == "a red kite"


def test_a_prompt_that_leaves_no_room_for_the_answer_is_refused(folder, pipeline):
    with pytest.raises(InvalidRequest, match="the rewriter reads 1012 beside an answer of 12"):
        pipeline.encode(work(folder, prompt="kite " * 300))


def test_the_same_words_in_bfloat16_run(folder):
    checkpoint = find_checkpoint(str(folder), architecture="PromptRewriter")
    platform, _ = find_device("cpu")
    context = BuildContext(
        checkpoint=checkpoint, platform=platform, device="cpu", dtype="bfloat16", attention=AttentionConfig()
    )
    pipeline = PromptRewriter.build(context)
    assert next(pipeline._model.parameters()).dtype is torch.bfloat16
    assert len(ran(pipeline, work(folder)).said) == 12


@pytest.mark.parametrize("damage", ["no files", "no weights", "another kind"])
def test_what_is_no_language_model_is_told(folder, tmp_path, damage):
    place = tmp_path / "odd"
    place.mkdir()
    if damage != "no files":
        for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors", "config.json"):
            if not (damage == "no weights" and name == "model.safetensors"):
                (place / name).write_bytes((folder / name).read_bytes())
    if damage == "another kind":
        (place / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(BadCheckpoint, match="odd"):
        built(place)


def test_a_context_without_files_is_refused(folder):
    checkpoint = replace(find_checkpoint(str(folder), architecture="PromptRewriter"), path=None)
    platform, _ = find_device("cpu")
    with pytest.raises(BadCheckpoint, match="has no files"):
        PromptRewriter.build(
            BuildContext(
                checkpoint=checkpoint, platform=platform, device="cpu", dtype="float32", attention=AttentionConfig()
            )
        )
