"""What the model reads of a request's media: rows of the presentation, frames for the text encoder, sound at the VAE's rate.

Letters: T frames, H height, W width, C channels, N samples, P patches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from omnireel.models.minimax_h3.limits import FPS, FRAMES_PER_CHUNK, TAIL_FRAMES
from omnireel.request import MediaInput, MediaKind

if TYPE_CHECKING:
    from omnireel.request import FramesU8

ENCODER_FPS = 2
"""Frames a second of a clip that the text encoder is shown."""
FRAMES_PER_BLOCK = 2

# Of torchaudio's default resampler, which prepared the sound that the model was trained on.
_LOWPASS_WIDTH = 6
_ROLLOFF = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A piece of text, tokenized by itself."""

    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionBlock:
    """A place for a picture, or for one pair of a clip's frames; `index` counts pictures and clips apart."""

    kind: MediaKind
    index: int


def present(prompt: str, media: tuple[MediaInput, ...]) -> list[Text | VisionBlock]:
    """What the text encoder is given: a label for each medium, numbered by kind, its vision blocks, then the prompt.

    A recording has a label alone; a clip with sound has the label of a recording before its own, and before each pair of
    its frames the second at which the pair stands, with one decimal.
    """
    parts: list[Text | VisionBlock] = []
    pictures = clips = sounds = 0
    for item in media:
        if item.wave is not None:
            sounds += 1
            parts.append(Text(words=f"<Audio {sounds}>: "))
        if item.kind is MediaKind.IMAGE:
            pictures += 1
            parts += [Text(words=f"<Picture {pictures}>: "), VisionBlock(kind=item.kind, index=pictures - 1)]
        elif item.kind is MediaKind.VIDEO and item.frames is not None:
            clips += 1
            parts.append(Text(words=f"<Video {clips}>: "))
            for second in block_seconds(len(item.frames)):
                parts += [Text(words=f"<{second:.1f} seconds>"), VisionBlock(kind=item.kind, index=clips - 1)]
    return [*parts, Text(words=prompt)]


def shown_indices(num_frames: int) -> list[int]:
    """Frames of a 24 fps clip that the text encoder is shown."""
    return list(range(0, num_frames, FPS // ENCODER_FPS))


def block_seconds(num_frames: int) -> list[float]:
    """The second of each pair of shown frames: the middle of the two; an odd last frame pairs with itself."""
    seconds = [index / ENCODER_FPS for index in range(len(shown_indices(num_frames)))]
    seconds += seconds[-1:] * (len(seconds) % FRAMES_PER_BLOCK)
    return [(seconds[k] + seconds[k + 1]) / 2 for k in range(0, len(seconds), FRAMES_PER_BLOCK)]


def encodable(frames: FramesU8) -> FramesU8:
    """A reference clip cut down to 17n + 5 frames, which the VAE encodes without padding; shorter than 22 it stays."""
    chunks = max(1, (len(frames) - TAIL_FRAMES) // FRAMES_PER_CHUNK)
    return frames[: chunks * FRAMES_PER_CHUNK + TAIL_FRAMES]


def heard(item: MediaInput, rate: int) -> Tensor:
    """A medium's sound as float32 [2,N] at the VAE's rate; mono is heard in both ears."""
    wave = torch.from_numpy(np.ascontiguousarray(item.wave, dtype=np.float32))
    if wave.shape[0] == 1:
        wave = wave.expand(2, -1)
    return resample(wave, item.sample_rate_hz or rate, rate)


def resample(wave: Tensor, rate: int, target: int) -> Tensor:
    """float32 [C,N] at another rate, by a windowed sinc: a Hann window over six zero crossings, rolled off at 0.99.

    Source: the defaults of torchaudio's `Resample`.
    """
    if rate == target:
        return wave
    common = math.gcd(rate, target)
    old, new = rate // common, target // common
    kernel, width = _sinc_kernel(old, new)
    padded = F.pad(wave[:, None], (width, width + old))
    pieces = F.conv1d(padded, kernel.to(wave), stride=old)
    whole = pieces.transpose(1, 2).reshape(wave.shape[0], -1)
    return whole[:, : math.ceil(new * wave.shape[1] / old)]


def _sinc_kernel(old: int, new: int) -> tuple[Tensor, int]:
    """A filter for each of the `new` phases [new,1,2*width+old], in float32 of a float64 computation, and its half width."""
    cutoff = min(old, new) * _ROLLOFF
    width = math.ceil(_LOWPASS_WIDTH * old / cutoff)
    taps = torch.arange(-width, width + old, dtype=torch.float64)[None, None] / old
    # Float32, as there: a phase such as 1/320 is rounded before it meets the float64 taps.
    phases = torch.arange(0, -new, -1)[:, None, None] / new
    time = ((phases + taps) * cutoff).clamp(-_LOWPASS_WIDTH, _LOWPASS_WIDTH)
    window = torch.cos(time * math.pi / _LOWPASS_WIDTH / 2) ** 2
    angle = time * math.pi
    sinc = torch.where(angle == 0, torch.ones_like(angle), torch.sin(angle) / angle)
    return (sinc * window * (cutoff / old)).float(), width
