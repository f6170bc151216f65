"""A request's media, from files or arrays, prepared as a model's plan wants them. Knows the plan, not the model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from omnireel.errors import MediaUnreadable
from omnireel.media.decode import fitted_frames, on_grid, read_clip, read_picture, read_sound
from omnireel.media.inspect import inspect_media
from omnireel.request import MediaFacts, MediaInput, MediaKind, MediaRef

if TYPE_CHECKING:
    from omnireel.request import MediaPlan, WaveF32


def media_facts(item: MediaRef | MediaInput, index: int) -> MediaFacts:
    """What a medium is. Of files only headers are read.

    Args:
        item: a file or arrays.
        index: its place in the request, from 0; arrays are called "media[index]" in errors.

    Raises:
        MediaUnreadable: the file is not what it should be, or the arrays have no such shape.
    """
    if isinstance(item, MediaRef):
        _check_ref(item)
        facts = inspect_media(item.source, kind=item.kind, name=item.name)
        return replace(facts, role=item.role, name=item.name)
    name = f"media[{index}]"
    if not isinstance(item, MediaInput):
        raise MediaUnreadable(name, "is no MediaRef(...) and no MediaInput(...)")
    _check_arrays(item, name)
    height, width = (0, 0) if item.frames is None else item.frames.shape[1:3]
    return MediaFacts(
        kind=item.kind,
        role=item.role,
        name=name,
        width=width,
        height=height,
        fps=item.fps or 0.0,
        seconds=_seconds(item),
        channels=0 if item.wave is None else item.wave.shape[0],
        sample_rate_hz=item.sample_rate_hz or 0,
    )


def prepared(item: MediaRef | MediaInput, plan: MediaPlan) -> MediaInput:
    """The medium as the plan wants it.

    Raises:
        MediaUnreadable: the file cannot be decoded.
    """
    return _from_file(item, plan) if isinstance(item, MediaRef) else _from_arrays(item, plan)


def _from_file(ref: MediaRef, plan: MediaPlan) -> MediaInput:
    if ref.kind is MediaKind.IMAGE:
        frames = read_picture(ref.source, name=ref.name, size=plan.size, is_cover=plan.fit == "cover")
        return MediaInput(kind=ref.kind, role=ref.role, frames=frames)
    if ref.kind is MediaKind.AUDIO:
        sound = read_sound(ref.source, name=ref.name, start_seconds=ref.start_seconds, max_seconds=plan.max_seconds)
        return MediaInput(kind=ref.kind, role=ref.role, wave=sound.wave, sample_rate_hz=sound.sample_rate_hz)
    clip = read_clip(
        ref.source,
        name=ref.name,
        fps=plan.fps,
        size=plan.size,
        max_frames=plan.max_frames,
        start_seconds=ref.start_seconds,
        max_sound_seconds=plan.max_seconds,
    )
    return MediaInput(
        kind=ref.kind,
        role=ref.role,
        frames=clip.frames,
        fps=clip.fps,
        wave=None if clip.sound is None else clip.sound.wave,
        sample_rate_hz=None if clip.sound is None else clip.sound.sample_rate_hz,
    )


def _from_arrays(item: MediaInput, plan: MediaPlan) -> MediaInput:
    frames, fps = item.frames, item.fps
    if frames is not None and fps is not None:
        fps = plan.fps or fps
        frames = on_grid(frames, item.fps or fps, fps, max_frames=plan.max_frames)
    if frames is not None:
        frames = fitted_frames(frames, plan.size, is_cover=plan.fit == "cover")
    return replace(item, frames=frames, fps=fps, wave=_cut(item.wave, item.sample_rate_hz, plan.max_seconds))


def _cut(wave: WaveF32 | None, rate: int | None, seconds: float | None) -> WaveF32 | None:
    if wave is None or rate is None or seconds is None:
        return wave
    return wave[:, : math.floor(seconds * rate)]


def _check_ref(ref: MediaRef) -> None:
    _check_kind(ref.kind, ref.name)
    if not isinstance(ref.source, Path | bytes):
        raise MediaUnreadable(ref.name, "has a source that is no Path and no bytes")
    if not _is_number(ref.start_seconds) or ref.start_seconds < 0:
        raise MediaUnreadable(ref.name, "has a start that is no number of seconds, 0 or more")


def _check_kind(kind: object, name: str) -> None:
    # A text that equals a kind is not one, and would be taken for a third.
    if not isinstance(kind, MediaKind):
        raise MediaUnreadable(name, "has a kind that is no MediaKind")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_arrays(item: MediaInput, name: str) -> None:
    _check_kind(item.kind, name)
    frames, wave = item.frames, item.wave
    if item.kind is MediaKind.AUDIO:
        if wave is None:
            raise MediaUnreadable(name, "has no sound")
    elif not isinstance(frames, np.ndarray) or frames.dtype != np.uint8 or frames.shape[3:] != (3,) or not frames.size:
        raise MediaUnreadable(name, "has no uint8 frames of shape (frames, height, width, 3)")
    elif item.kind is MediaKind.IMAGE and len(frames) > 1:
        raise MediaUnreadable(name, f"is a picture of {len(frames)} frames")
    if item.kind is MediaKind.VIDEO and (not _is_number(item.fps) or (item.fps or 0) <= 0):
        raise MediaUnreadable(name, "has no frame rate")
    if wave is not None:
        _check_wave(wave, item.sample_rate_hz, name)


def _check_wave(wave: object, rate: object, name: str) -> None:
    needed = "has no float wave of shape (1 or 2 channels, samples) with its rate"
    if not isinstance(wave, np.ndarray) or wave.dtype.kind != "f" or wave.ndim != 2 or wave.shape[0] not in (1, 2):
        raise MediaUnreadable(name, needed)
    if not isinstance(rate, int) or rate < 1:
        raise MediaUnreadable(name, needed)
    if not wave.size or not np.isfinite(wave).all():
        raise MediaUnreadable(name, "has a wave that is empty or holds what is no number")


def _seconds(item: MediaInput) -> float:
    if item.frames is not None and item.fps:
        return len(item.frames) / item.fps
    if item.wave is not None and item.sample_rate_hz:
        return float(item.wave.shape[1] / item.sample_rate_hz)
    return 0.0
