"""Our packed layouts against the public ones: every index, tag and position to the last bit, over many geometries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3Ref2VAPrepareLayoutStep,
    patchify_video_latents,
)
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import resolve_canvas_size
from tests.parity.tolerances import assert_close

from omnireel.models.minimax_h3 import limits as geometry
from omnireel.models.minimax_h3.limits import Limits
from omnireel.models.minimax_h3.packing import (
    ClipReference,
    Condition,
    Keyframe,
    PackedLayout,
    PictureReference,
    SoundReference,
    Target,
    pack,
    patchify,
    sound_latents,
    sound_rows,
    unpatchify,
)

PATCH = (1, 2, 2)
TARGETS = [(37, 2, 2, 207), (62, 48, 84, 348), (32, 8, 14, 178), (2, 6, 10, 8), (17, 34, 2, 93), (102, 4, 26, 575)]


def same(ours: PackedLayout, theirs: tuple[Any, ...]) -> None:
    positions, tags, video, audio, text, condition_video, condition_audio = theirs
    assert_close("layout", ours.position_ids, positions)
    for mine, other in ((ours.token_tags, tags), (ours.video_indices, video), (ours.audio_indices, audio)):
        assert_close("layout", mine, other)
    assert_close("layout", ours.text_indices, text)
    assert (ours.num_condition_video_rows, ours.num_condition_audio_rows) == (condition_video, condition_audio)


def tags_of(length: int) -> torch.Tensor:
    tags = torch.ones(length, dtype=torch.int64)
    tags[length // 3 : length // 2] = 0
    return tags


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("anchors", [(), ("first",), ("last",), ("first", "last")])
@pytest.mark.parametrize("length", [1, 128])
def test_text_and_keyframes(target, anchors, length):
    frames, height, width, sound = target
    theirs = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        tags_of(length), frames, height, width, sound, PATCH, 2, 2, 0, anchors
    )
    ours = pack(
        tags_of(length),
        Target(latent_frames=frames, latent_height=height, latent_width=width, sound_latents=sound),
        patch_size=PATCH,
        conditions=[Keyframe(anchor=anchor) for anchor in anchors],
    )
    same(ours, theirs)


@dataclass
class Reference:
    kind: str
    has_audio: bool = False


PICTURE = PictureReference(latent_height=128, latent_width=214)
WIDE = PictureReference(latent_height=4, latent_width=16)
SOUND = SoundReference(num_latents=120)
CLIP = ClipReference(latent_frames=37, latent_height=6, latent_width=10, sound_latents=200)
LONG = ClipReference(latent_frames=62, latent_height=4, latent_width=4, sound_latents=400)
SILENT = ClipReference(latent_frames=17, latent_height=8, latent_width=2, sound_latents=0)
MIXES: dict[str, list[Condition]] = {
    "picture": [PICTURE],
    "clip": [CLIP],
    "silent clip": [SILENT],
    "picture, clip, sound": [PICTURE, CLIP, SOUND],
    "sound, picture": [SOUND, PICTURE],
    "clip, sound, clip": [CLIP, SOUND, SILENT],
    "sound, clip, picture, picture": [SOUND, LONG, WIDE, PICTURE],
    "three clips": [SILENT, LONG, CLIP],
    "pictures around a sound": [WIDE, SOUND, WIDE],
}


@pytest.mark.parametrize("target", TARGETS[:4])
@pytest.mark.parametrize("mix", MIXES)
def test_references(target, mix):
    frames, height, width, sound = target
    references, visual, heard = [], [], []
    for condition in MIXES[mix]:
        if isinstance(condition, PictureReference):
            references.append(Reference("image"))
            visual.append(torch.empty(1, 4, 1, condition.latent_height, condition.latent_width))
        elif isinstance(condition, SoundReference):
            references.append(Reference("audio"))
            heard.append(torch.empty(2 * condition.num_latents, 8))
        elif isinstance(condition, ClipReference):
            references.append(Reference("video", has_audio=condition.sound_latents > 0))
            if condition.sound_latents:
                heard.append(torch.empty(2 * condition.sound_latents, 8))
            visual.append(torch.empty(1, 4, condition.latent_frames, condition.latent_height, condition.latent_width))
    theirs = MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence(
        tags_of(50), references, visual, heard, frames, height, width, sound, PATCH, 2, 2, 0
    )
    ours = pack(
        tags_of(50),
        Target(latent_frames=frames, latent_height=height, latent_width=width, sound_latents=sound),
        patch_size=PATCH,
        conditions=MIXES[mix],
    )
    same(ours, theirs)


@pytest.mark.parametrize("patch", [(1, 2, 2), (2, 2, 1), (1, 1, 1)])
def test_patches_are_the_references_and_come_back(patch):
    latents = torch.randn(1, 5, 4, 6, 10)
    rows = patchify(latents, patch)
    assert_close("layout", rows, patchify_video_latents(latents, patch))
    target = Target(latent_frames=4, latent_height=6, latent_width=10, sound_latents=0)
    assert torch.equal(unpatchify(rows, target, patch), latents)


def test_sound_rows_are_ear_after_ear_and_come_back():
    latents = torch.randn(2, 8, 11)
    rows = sound_rows(latents)
    assert torch.equal(rows[:11], latents[0].T)
    assert torch.equal(sound_latents(rows), latents)


@pytest.mark.parametrize("short_edge", [768, 128, 544])
@pytest.mark.parametrize("ratio", [(21, 9), (16, 9), (4, 3), (1, 1), (3, 4), (9, 16), (4, 1), (1, 4), (1919, 1080)])
def test_canvases(ratio, short_edge):
    limits = Limits(canvas_short_edge=short_edge, canvas_max_pixels=short_edge * short_edge * 7 // 4)
    theirs = resolve_canvas_size(*ratio, 32, limits.canvas_short_edge, limits.canvas_max_pixels)
    assert geometry.canvas(ratio[0], ratio[1], limits) == tuple(theirs)
