"""Runs with keyframes and references from one checkpoint, prompt and seed: ours against the public blocks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from tests.parity.test_text_to_video import context
from tests.parity.tolerances import assert_close

from omnireel.media.prepare import media_facts, prepared
from omnireel.models.discover import admit, find_checkpoint, load_pipeline
from omnireel.models.minimax_h3.vision import CLIP_RULES, PICTURE_RULES, PatchRules, clip_patches, picture_patches
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaInput, MediaKind, Workload

PROMPT = "They meet."
NUM_FRAMES = 124
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")


def frames(count: int, height: int, width: int, seed: int) -> np.ndarray:
    """Smooth coloured frames; noise would hide what a resize does."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (count, 4, 5, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(f).resize((width, height), Image.Resampling.BICUBIC)) for f in small])


def wave(samples: int, seed: int, channels: int = 2) -> np.ndarray:
    return (0.3 * np.random.default_rng(seed).standard_normal((channels, samples))).astype(np.float32)


def picture(role: str, height: int, width: int, seed: int) -> MediaInput:
    return MediaInput(kind=MediaKind.IMAGE, role=role, frames=frames(1, height, width, seed))


def clip(count: int, height: int, width: int, seed: int, *, fps: float = 24.0, samples: int = 0) -> MediaInput:
    sound = wave(samples, seed) if samples else None
    return MediaInput(
        kind=MediaKind.VIDEO, role="reference", frames=frames(count, height, width, seed), fps=fps,
        wave=sound, sample_rate_hz=32_000 if samples else None,
    )  # fmt: skip


def recording(samples: int, seed: int, channels: int = 2) -> MediaInput:
    return MediaInput(kind=MediaKind.AUDIO, role="reference", wave=wave(samples, seed, channels), sample_rate_hz=32_000)


def workload_of(checkpoint: Path, media: list[MediaInput], points: int, size: tuple[int, int] | None) -> Workload:
    sampling = DiffusionSamplingParams(
        height=size[0] if size else None, width=size[1] if size else None, num_frames=NUM_FRAMES,
        num_inference_steps=points, seed=11, output_type="latent",
    )  # fmt: skip
    request = GenerationRequest(prompt=PROMPT, media=tuple(media), sampling=sampling)
    facts = [media_facts(item, k) for k, item in enumerate(media)]
    work = admit(request, find_checkpoint(str(checkpoint)), facts)
    loaded = tuple(prepared(item, plan) for item, plan in zip(media, work.media_plans, strict=True))
    return dataclasses.replace(work, media=loaded)


class Processor:
    """The public image processor, and of the rest what the public blocks ask of the joint one (which needs torchvision)."""

    def __init__(self) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        rules = PICTURE_RULES
        self.image_processor = Qwen2VLImageProcessorPil(
            size={"shortest_edge": rules.min_pixels, "longest_edge": rules.max_pixels}, patch_size=16, merge_size=2,
            temporal_patch_size=2, image_mean=list(rules.mean), image_std=list(rules.std),
        )  # fmt: skip
        self.video_processor = VideoProcessor()

    def create_mm_token_type_ids(self, ids: list[list[int]]) -> list[list[int]]:
        return [[{259: 1, 260: 2}.get(token, 0) for token in row] for row in ids]


class VideoProcessor:
    """Ours: the public one needs torchvision; its arithmetic is checked apart from this."""

    temporal_patch_size = 2

    def __call__(self, *, videos: list[np.ndarray], **_: object) -> dict[str, torch.Tensor]:
        made = []
        for shown in videos:
            # Undo the choice of frames: a clip that holds each shown frame twelve times is shown as these.
            item = MediaInput(kind=MediaKind.VIDEO, role="reference", frames=np.repeat(shown, 12, axis=0), fps=24.0)
            patches = clip_patches((item,), CLIP_RULES)
            assert patches is not None
            made.append(patches)
        return {
            "pixel_values_videos": torch.cat([patches.patches for patches in made]),
            "video_grid_thw": torch.cat([patches.grids for patches in made]),
        }


def reference(checkpoint: Path, blocks: Any, components: dict[str, Any], **inputs: Any) -> Any:
    from diffusers import (
        AutoencoderKLMiniMaxH3,
        AutoencoderKLMiniMaxH3Audio,
        MiniMaxH3Scheduler,
        MiniMaxH3Transformer3DModel,
    )
    from transformers import Qwen2TokenizerFast, Qwen3VLForConditionalGeneration

    pipe = blocks().init_pipeline()
    name = components["transformer"]
    loaded = {
        name: MiniMaxH3Transformer3DModel.from_pretrained(checkpoint / name).eval(),
        "vae": AutoencoderKLMiniMaxH3.from_pretrained(checkpoint / "vae").eval(),
        "audio_vae": AutoencoderKLMiniMaxH3Audio.from_pretrained(checkpoint / "audio_vae").eval(),
        "scheduler": MiniMaxH3Scheduler.from_pretrained(checkpoint / "scheduler"),
        "audio_scheduler": MiniMaxH3Scheduler.from_pretrained(checkpoint / "audio_scheduler"),
        "text_encoder": Qwen3VLForConditionalGeneration.from_pretrained(checkpoint / "text_encoder").eval(),
        "tokenizer": Qwen2TokenizerFast.from_pretrained(checkpoint / "tokenizer"),
    }
    pipe.update_components(**loaded)
    pipe.processor = Processor()
    pipe.register_to_config(canvas_short_edge=32, canvas_max_pixels=32 * 64, reference_image_short_edge=64)
    pipe.set_progress_bar_config(disable=True)
    return pipe(
        prompt=PROMPT,
        num_frames=NUM_FRAMES,
        generator=torch.Generator("cpu").manual_seed(11),
        output_type="pt",
        **inputs,
    )


def ours(checkpoint: Path, work: Workload) -> Any:
    pipeline = load_pipeline(context(checkpoint))
    state = pipeline.prepare(work, pipeline.encode(work))
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
    latents = pipeline.decode(state).latents
    assert latents is not None
    return latents


def same(latents: Any, expected: Any) -> None:
    assert_close("loop_latents", torch.from_numpy(latents["video"]), expected.get("latents"))
    assert_close("loop_latents", torch.from_numpy(latents["audio"]), expected.get("audio_latents"))


def first_last_blocks() -> Any:
    from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3ResizeStep
    from diffusers.modular_pipelines.minimax_h3.encoders import (
        MiniMaxH3FL2VATextEncoderStep,
        MiniMaxH3KeyframeVaeEncoderStep,
    )
    from diffusers.modular_pipelines.minimax_h3.modular_blocks_minimax_h3 import (
        MiniMaxH3DecodeStep,
        MiniMaxH3FL2VACoreDenoiseStep,
    )
    from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks

    class Blocks(SequentialPipelineBlocks):  # type: ignore[misc]
        model_name = "minimax-h3"
        block_classes: ClassVar = [
            MiniMaxH3ResizeStep, MiniMaxH3FL2VATextEncoderStep, MiniMaxH3KeyframeVaeEncoderStep, MiniMaxH3FL2VACoreDenoiseStep, MiniMaxH3DecodeStep,
        ]  # fmt: skip
        block_names: ClassVar = ["resize", "text", "vae", "denoise", "decode"]

    return Blocks


def reference_blocks() -> Any:
    from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3Ref2VASetupStep
    from diffusers.modular_pipelines.minimax_h3.encoders import (
        MiniMaxH3Ref2VAReferenceEncoderStep,
        MiniMaxH3Ref2VATextEncoderStep,
    )
    from diffusers.modular_pipelines.minimax_h3.modular_blocks_minimax_h3 import (
        MiniMaxH3DecodeStep,
        MiniMaxH3Ref2VACoreDenoiseStep,
    )
    from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks

    class Blocks(SequentialPipelineBlocks):  # type: ignore[misc]
        model_name = "minimax-h3"
        block_classes: ClassVar = [
            MiniMaxH3Ref2VASetupStep, MiniMaxH3Ref2VATextEncoderStep, MiniMaxH3Ref2VAReferenceEncoderStep,
            MiniMaxH3Ref2VACoreDenoiseStep, MiniMaxH3DecodeStep,
        ]  # fmt: skip
        block_names: ClassVar = ["setup", "text", "references", "denoise", "decode"]

    return Blocks


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, (32, 64)])
@pytest.mark.parametrize("roles", [("first_frame",), ("last_frame",), ("first_frame", "last_frame")])
def test_keyframes(checkpoint, roles, size):
    media = [picture(role, 90, 70 + 20 * k, k) for k, role in enumerate(roles)]
    named = {}
    for item in media:
        assert item.frames is not None
        named["image" if item.role == "first_frame" else "last_image"] = Image.fromarray(item.frames[0])
    canvas = {} if size is None else {"height": size[0], "width": size[1]}
    expected = reference(
        checkpoint, first_last_blocks(), {"transformer": "transformer"}, num_inference_steps=4, **named, **canvas
    )
    same(ours(checkpoint, workload_of(checkpoint, media, 4, size)), expected)


def test_the_order_in_which_keyframes_are_given_does_not_matter(checkpoint):
    media = [picture("first_frame", 64, 96, 1), picture("last_frame", 64, 64, 2)]
    given = ours(checkpoint, workload_of(checkpoint, media, 2, None))
    turned = ours(checkpoint, workload_of(checkpoint, media[::-1], 2, None))
    assert np.array_equal(given["video"], turned["video"])


MIXES = {
    "picture": [picture("reference", 50, 80, 1)],
    "silent clip": [clip(40, 50, 80, 2)],
    "clip with sound": [clip(60, 64, 64, 3, samples=50_000)],
    "picture, recording": [picture("reference", 80, 50, 4), recording(40_000, 4)],
    "recording, picture": [recording(40_000, 5, 1), picture("reference", 64, 100, 5)],
    "clip, picture, recording": [clip(25, 40, 60, 6, fps=12.0), picture("reference", 64, 64, 6), recording(32_000, 6)],
    "recording, clip with sound": [recording(24_000, 7), clip(30, 64, 40, 7, fps=30.0, samples=30_000)],
    "two pictures, two clips": [
        picture("reference", 64, 64, 8), clip(22, 32, 32, 8), picture("reference", 40, 64, 9), clip(13, 32, 64, 9),
    ],
    "clip longer than the target": [clip(200, 32, 64, 10, samples=300_000)],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_references(checkpoint, mix):
    from diffusers.modular_pipelines.minimax_h3.references import (
        MiniMaxH3AudioReference,
        MiniMaxH3ImageReference,
        MiniMaxH3VideoReference,
    )

    theirs = []
    for item in MIXES[mix]:
        sound = None if item.wave is None else torch.from_numpy(item.wave)
        if item.kind is MediaKind.IMAGE:
            assert item.frames is not None
            theirs.append(MiniMaxH3ImageReference(image=Image.fromarray(item.frames[0])))
        elif item.kind is MediaKind.AUDIO:
            theirs.append(MiniMaxH3AudioReference(audio=sound, sample_rate=32_000))
        else:
            rate = {} if sound is None else {"audio": sound, "sample_rate": 32_000}
            theirs.append(MiniMaxH3VideoReference(frames=item.frames, fps=item.fps, **rate))
    expected = reference(
        checkpoint, reference_blocks(), {"transformer": "transformer_ref"}, num_inference_steps=3, references=theirs,
        height=32, width=64,
    )  # fmt: skip
    same(ours(checkpoint, workload_of(checkpoint, MIXES[mix], 3, (32, 64))), expected)


@pytest.mark.parametrize("size", [(64, 64), (768, 1344), (33, 100), (96, 250), (400, 600)])
def test_pictures_become_the_patches_of_the_public_processor(size):
    picture_frames = frames(1, size[0], size[1], 3)
    item = MediaInput(kind=MediaKind.IMAGE, role="reference", frames=picture_frames)
    expected = Processor().image_processor(images=[Image.fromarray(picture_frames[0])], return_tensors="pt")
    made = picture_patches((item,), PICTURE_RULES)
    assert made is not None
    assert torch.equal(made.grids, expected["image_grid_thw"])
    assert (made.patches - expected["pixel_values"]).abs().max() <= 1e-6


def test_the_bounds_of_a_clip_count_all_its_frames():
    rules = PatchRules(min_pixels=4096, max_pixels=40 * 64 * 64)
    item = MediaInput(kind=MediaKind.VIDEO, role="reference", frames=frames(480, 128, 128, 1), fps=24.0)
    made = clip_patches((item,), rules)
    assert made is not None
    assert made.grids.tolist() == [[20, 4, 4]]
