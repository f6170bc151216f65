"""A whole text-to-video run from one checkpoint folder, prompt and seed: ours against the public blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.parity.tolerances import assert_close

from omnireel.attention import AttentionConfig
from omnireel.models.discover import admit, find_checkpoint, load_pipeline
from omnireel.models.protocol import BuildContext
from omnireel.platforms import find_platform
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaOutput

PROMPT = "A red ball; it bounces. \u00e9"
NUM_FRAMES = 124


def context(checkpoint: Path, dtype: str = "float32") -> BuildContext:
    return BuildContext(
        checkpoint=find_checkpoint(str(checkpoint)),
        platform=find_platform("cpu"),
        device="cpu",
        dtype=dtype,
        attention=AttentionConfig(),
    )


def ours(
    checkpoint: Path, *, points: int, seed: int, output_type: str, size: tuple[int, int] = (32, 32)
) -> MediaOutput:
    built = context(checkpoint)
    pipeline = load_pipeline(built)
    sampling = DiffusionSamplingParams(
        height=size[0],
        width=size[1],
        num_frames=NUM_FRAMES,
        num_inference_steps=points,
        seed=seed,
        output_type=output_type,
    )
    workload = admit(GenerationRequest(prompt=PROMPT, sampling=sampling), built.checkpoint)
    state = pipeline.prepare(workload, pipeline.encode(workload))
    for _ in range(state.num_steps):
        state = pipeline.step(state)
    return pipeline.decode(state)


def reference_text(checkpoint: Path) -> torch.Tensor:
    """The state behind decoder layer 50 of the whole encoder, through the public classes alone."""
    from transformers import Qwen2TokenizerFast, Qwen3VLForConditionalGeneration

    tokenizer = Qwen2TokenizerFast.from_pretrained(checkpoint / "tokenizer")
    encoder = Qwen3VLForConditionalGeneration.from_pretrained(checkpoint / "text_encoder").eval()
    input_ids = torch.tensor([tokenizer(PROMPT, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        states = encoder(
            input_ids=input_ids, attention_mask=torch.ones_like(input_ids), output_hidden_states=True, use_cache=False
        ).hidden_states
    read: torch.Tensor = states[50]
    return read


def theirs(checkpoint: Path, *, points: int, seed: int, size: tuple[int, int] = (32, 32)) -> Any:
    """The state of the public blocks at their end: latents, audio_latents, videos, audio."""
    from diffusers import (
        AutoencoderKLMiniMaxH3,
        AutoencoderKLMiniMaxH3Audio,
        MiniMaxH3Scheduler,
        MiniMaxH3Transformer3DModel,
    )
    from diffusers.modular_pipelines.minimax_h3.modular_blocks_minimax_h3 import (
        MiniMaxH3CoreDenoiseStep,
        MiniMaxH3DecodeStep,
    )
    from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks

    class Blocks(SequentialPipelineBlocks):  # type: ignore[misc]
        model_name = "minimax-h3"
        block_classes: ClassVar = [MiniMaxH3CoreDenoiseStep, MiniMaxH3DecodeStep]
        block_names: ClassVar = ["denoise", "decode"]

    pipe = Blocks().init_pipeline()
    pipe.update_components(
        transformer=MiniMaxH3Transformer3DModel.from_pretrained(checkpoint / "transformer").eval(),
        vae=AutoencoderKLMiniMaxH3.from_pretrained(checkpoint / "vae").eval(),
        audio_vae=AutoencoderKLMiniMaxH3Audio.from_pretrained(checkpoint / "audio_vae").eval(),
        scheduler=MiniMaxH3Scheduler.from_pretrained(checkpoint / "scheduler"),
        audio_scheduler=MiniMaxH3Scheduler.from_pretrained(checkpoint / "audio_scheduler"),
    )
    pipe.set_progress_bar_config(disable=True)
    text = reference_text(checkpoint)
    return pipe(
        prompt_embeds=text,
        text_token_tags=torch.ones(text.shape[1], dtype=torch.long),
        height=size[0],
        width=size[1],
        num_frames=NUM_FRAMES,
        num_inference_steps=points,
        generator=torch.Generator("cpu").manual_seed(seed),
        output_type="pt",
    )


def test_the_conditioner_gives_the_reference_states_bit_for_bit(checkpoint):
    built = context(checkpoint)
    pipeline = load_pipeline(built)
    workload = admit(GenerationRequest(prompt=PROMPT), built.checkpoint)
    conditioning = pipeline.encode(workload)
    assert torch.equal(conditioning.text, reference_text(checkpoint))
    assert conditioning.tags.tolist() == [1] * conditioning.text.shape[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(("points", "size"), [(8, (32, 32)), (20, (32, 32)), (8, (32, 96))])
def test_a_whole_run_is_the_references(checkpoint, points, size):
    expected = theirs(checkpoint, points=points, seed=7, size=size)
    made = ours(checkpoint, points=points, seed=7, output_type="frames", size=size)
    assert made.frames is not None
    assert made.wave is not None
    latents = ours(checkpoint, points=points, seed=7, output_type="latent", size=size).latents
    assert latents is not None
    assert_close("loop_latents", torch.from_numpy(latents["video"]), expected.get("latents"))
    assert_close("loop_latents", torch.from_numpy(latents["audio"]), expected.get("audio_latents"))
    video = expected.get("videos")
    frames = torch.from_numpy(made.frames).permute(0, 3, 1, 2).float() / 255
    assert_close("loop_frames", frames, torch.as_tensor(video).reshape(frames.shape).float())
    assert_close(
        "loop_wave", torch.from_numpy(made.wave), torch.as_tensor(expected.get("audio")).reshape(made.wave.shape)
    )
    assert frames.std() > 0.01
    assert made.wave.std() > 1e-4
