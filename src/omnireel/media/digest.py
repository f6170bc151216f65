"""Digests of what a clip shows and sounds like, whatever file it lies in."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from omnireel.request import FramesU8, MediaInput, WaveF32


def frames_digest(frames: FramesU8) -> str:
    """ "sha256:" and the SHA-256 of uint8 [T,H,W,3] in row-major order."""
    digest = hashlib.sha256()
    for frame in frames:
        digest.update(np.ascontiguousarray(frame).data)
    return f"sha256:{digest.hexdigest()}"


def wave_digest(wave: WaveF32) -> str:
    """ "sha256:" and the SHA-256 of float32 [C,N] in row-major order, little-endian."""
    return f"sha256:{hashlib.sha256(np.ascontiguousarray(wave, dtype='<f4').data).hexdigest()}"


def media_digest(item: MediaInput) -> str:
    """ "sha256:" and the SHA-256 of a prepared medium: its rates, then its frames, then its wave."""
    digest = hashlib.sha256(f"{item.fps} {item.sample_rate_hz}".encode())
    for part in (
        None if item.frames is None else frames_digest(item.frames),
        None if item.wave is None else wave_digest(item.wave),
    ):
        digest.update(f" {part}".encode())
    return f"sha256:{digest.hexdigest()}"


def file_digest(data: bytes | memoryview) -> str:
    """ "sha256:" and the SHA-256 of a file's bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
