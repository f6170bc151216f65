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
_MAX_KERNEL_VALUES = 1 << 22
"""Of filters that are held at a time; all phases between the usual rates need fewer, most of them by far."""


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
    samples = math.ceil(new * wave.shape[1] / old)
    if old * new > _MAX_KERNEL_VALUES:
        return _resampled_by_windows(wave, old, new, samples)
    kernel, width = _sinc_kernel(old, new)
    padded = F.pad(wave[:, None], (width, width + old))
    pieces = F.conv1d(padded, kernel.to(wave), stride=old)
    whole = pieces.transpose(1, 2).reshape(wave.shape[0], -1)
    return whole[:, :samples]


def _resampled_by_windows(wave: Tensor, old: int, new: int, samples: int) -> Tensor:
    """The same filter, made for each new sample of the old ones that it reaches: the kernel of all phases, which is zero
    nearly everywhere, would take gigabytes between rates without a large common divisor.
    """
    width = math.ceil(_LOWPASS_WIDTH * old / (min(old, new) * _ROLLOFF))
    taps = torch.arange(-width, width + 2)
    at_once = max(1, _MAX_KERNEL_VALUES // len(taps))
    pieces = []
    for first in range(0, samples, at_once):
        block = torch.arange(first, min(samples, first + at_once))
        phase = (block % new)[:, None]
        in_block = phase * old // new + taps
        filters = _windowed_sinc(in_block.double() / old + -phase / new, old, new)
        places = (block // new * old)[:, None] + in_block
        old_values = wave[:, places.clamp(0, wave.shape[1] - 1)] * ((places >= 0) & (places < wave.shape[1]))
        pieces.append((old_values * filters.to(wave)).sum(-1))
    return torch.cat(pieces, dim=1)


def _sinc_kernel(old: int, new: int) -> tuple[Tensor, int]:
    """A filter for each of the `new` phases [new,1,2*width+old], in float32 of a float64 computation, and its half width."""
    width = math.ceil(_LOWPASS_WIDTH * old / (min(old, new) * _ROLLOFF))
    taps = torch.arange(-width, width + old, dtype=torch.float64)[None, None] / old
    # Float32, as there: a phase such as 1/320 is rounded before it meets the float64 taps.
    phases = torch.arange(0, -new, -1)[:, None, None] / new
    return _windowed_sinc(phases + taps, old, new).float(), width


def _windowed_sinc(offset: Tensor, old: int, new: int) -> Tensor:
    """The filter at float64 offsets, in units of the time that `old` samples take."""
    cutoff = min(old, new) * _ROLLOFF
    time = (offset * cutoff).clamp(-_LOWPASS_WIDTH, _LOWPASS_WIDTH)
    window = torch.cos(time * math.pi / _LOWPASS_WIDTH / 2) ** 2
    angle = time * math.pi
    sinc = torch.where(angle == 0, torch.ones_like(angle), torch.sin(angle) / angle)
    return sinc * window * (cutoff / old)
