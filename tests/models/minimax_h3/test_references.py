"""What the model reads of media: labels, frames, and sound at another rate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omnireel.models.minimax_h3 import references
from omnireel.models.minimax_h3.references import (
    Text,
    VisionBlock,
    block_seconds,
    encodable,
    heard,
    present,
    resample,
    shown_indices,
)
from omnireel.request import MediaInput, MediaKind


def frames(count: int) -> np.ndarray:
    return np.zeros((count, 2, 2, 3), np.uint8)


def words(media: list[MediaInput]) -> list[str]:
    parts = present("go", tuple(media))
    return [part.words if isinstance(part, Text) else f"[{part.kind} {part.index}]" for part in parts]


PICTURE = MediaInput(kind=MediaKind.IMAGE, role="reference", frames=frames(1))
SOUND = MediaInput(kind=MediaKind.AUDIO, role="reference", wave=np.zeros((1, 8), np.float32), sample_rate_hz=8)
CLIP = MediaInput(kind=MediaKind.VIDEO, role="reference", frames=frames(25), fps=24.0)
LOUD = MediaInput(
    kind=MediaKind.VIDEO,
    role="reference",
    frames=frames(13),
    fps=24.0,
    wave=np.zeros((2, 8), np.float32),
    sample_rate_hz=8,
)


def test_a_prompt_alone_is_all():
    assert words([]) == ["go"]


def test_labels_count_by_kind_and_a_clips_sound_comes_before_it():
    assert words([SOUND, PICTURE, LOUD, PICTURE]) == [
        "<Audio 1>: ", "<Picture 1>: ", "[image 0]", "<Audio 2>: ", "<Video 1>: ", "<0.2 seconds>", "[video 0]",
        "<Picture 2>: ", "[image 1]", "go",
    ]  # fmt: skip


def test_each_pair_of_a_clips_frames_has_its_second():
    assert words([CLIP])[:5] == ["<Video 1>: ", "<0.2 seconds>", "[video 0]", "<1.0 seconds>", "[video 0]"]


def test_two_frames_a_second_are_shown():
    assert shown_indices(25) == [0, 12, 24]
    assert block_seconds(25) == [0.25, 1.0]


@pytest.mark.parametrize(("given", "kept"), [(13, 13), (22, 22), (30, 22), (39, 39), (55, 39), (124, 124)])
def test_clips_are_cut_to_what_the_vae_takes_whole(given, kept):
    assert len(encodable(frames(given))) == kept


def test_mono_is_heard_in_both_ears():
    item = MediaInput(kind=MediaKind.AUDIO, role="reference", wave=np.ones((1, 5), np.float32), sample_rate_hz=32_000)
    assert heard(item, 32_000).tolist() == [[1.0] * 5] * 2


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000, 96_000, 22_050, 44_101, 11_127])
def test_a_tone_keeps_its_pitch_level_and_length(rate):
    seconds = 0.5
    tone = torch.sin(2 * torch.pi * 440 * torch.arange(int(rate * seconds)) / rate)[None].float()
    made = resample(tone, rate, 32_000)
    assert made.shape == (1, -(-32_000 * tone.shape[1] // rate))
    expected = torch.sin(2 * torch.pi * 440 * torch.arange(made.shape[1]) / 32_000)
    assert (made[0] - expected)[400:-400].abs().max() < 2e-3


def test_the_same_rate_changes_nothing():
    wave = torch.randn(2, 100)
    assert resample(wave, 32_000, 32_000) is wave


def test_what_the_new_rate_cannot_carry_is_taken_out():
    tone = torch.sin(2 * torch.pi * 20_000 * torch.arange(48_000) / 48_000)[None].float()
    assert resample(tone, 48_000, 32_000)[0, 400:-400].abs().max() < 0.01


def test_vision_blocks_are_data():
    assert VisionBlock(kind=MediaKind.IMAGE, index=0) == VisionBlock(kind=MediaKind.IMAGE, index=0)


@pytest.mark.parametrize("rate", [11_025, 44_100, 48_000])
def test_filters_made_one_sample_at_a_time_are_the_same(monkeypatch, rate):
    wave = torch.randn(2, rate // 10)
    by_phases = resample(wave, rate, 32_000)
    monkeypatch.setattr(references, "_MAX_KERNEL_VALUES", 1000)
    by_windows = resample(wave, rate, 32_000)
    assert by_windows.shape == by_phases.shape
    assert (by_windows - by_phases).abs().max() < 2e-6


def test_any_rate_is_taken_in_little_memory():
    # All phases from this rate would be 68 million million filters.
    assert resample(torch.ones(1, 1000), 2**31 - 1, 32_000).shape == (1, 1)
