"""A presentation is encoded once as long as nothing that the encoder sees has changed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from omnireel.models.minimax_h3.prompt_cache import PromptCache
from omnireel.request import MediaInput, MediaKind

PICTURE = MediaInput(kind=MediaKind.IMAGE, role="reference", frames=np.zeros((1, 4, 4, 3), np.uint8))
SOUND = MediaInput(kind=MediaKind.AUDIO, role="reference", wave=np.zeros((1, 9), np.float32), sample_rate_hz=8)


class Encoder:
    """Counts what it encodes."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        return torch.tensor([self.calls]), torch.tensor([1])


def test_the_same_is_encoded_once():
    cache, encode = PromptCache(2), Encoder()
    first = cache.get("a", (PICTURE,), encode)
    assert cache.get("a", (dataclasses.replace(PICTURE),), encode) is first
    assert encode.calls == 1


@pytest.mark.parametrize(
    ("prompt", "media"),
    [
        ("b", (PICTURE,)),
        ("a", ()),
        ("a", (PICTURE, PICTURE)),
        ("a", (PICTURE, SOUND)),
        ("a", (dataclasses.replace(PICTURE, frames=np.ones((1, 4, 4, 3), np.uint8)),)),
        ("a", (dataclasses.replace(PICTURE, frames=np.zeros((1, 2, 8, 3), np.uint8)),)),
        ("a", (dataclasses.replace(PICTURE, kind=MediaKind.VIDEO),)),
        ("a", (dataclasses.replace(PICTURE, wave=SOUND.wave),)),
    ],
)
def test_whatever_the_encoder_sees_is_part_of_the_key(prompt, media):
    cache, encode = PromptCache(9), Encoder()
    cache.get("a", (PICTURE,), encode)
    cache.get(prompt, media, encode)
    assert encode.calls == 2


def test_order_is_part_of_the_key():
    cache, encode = PromptCache(9), Encoder()
    cache.get("a", (SOUND, PICTURE), encode)
    cache.get("a", (PICTURE, SOUND), encode)
    assert encode.calls == 2


def test_the_content_of_a_recording_is_not_seen_by_the_encoder():
    cache, encode = PromptCache(9), Encoder()
    cache.get("a", (PICTURE, SOUND), encode)
    cache.get("a", (PICTURE, dataclasses.replace(SOUND, wave=np.ones((1, 9), np.float32))), encode)
    assert encode.calls == 1


def test_the_least_recently_used_goes_first():
    cache, encode = PromptCache(2), Encoder()
    for prompt in ("a", "b", "a", "c", "a", "b"):
        cache.get(prompt, (), encode)
    assert encode.calls == 4


def test_a_cache_of_none_keeps_none():
    cache, encode = PromptCache(0), Encoder()
    cache.get("a", (), encode)
    cache.get("a", (), encode)
    assert encode.calls == 2
