"""Digests follow what is seen and heard, not how it lies in memory."""

from __future__ import annotations

import hashlib

import numpy as np

from omnireel.media.digest import file_digest, frames_digest, wave_digest

FRAMES = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)


def test_frames_are_digested_in_row_major_order():
    assert frames_digest(FRAMES) == f"sha256:{hashlib.sha256(FRAMES.tobytes()).hexdigest()}"
    assert frames_digest(np.asfortranarray(FRAMES)) == frames_digest(FRAMES)


def test_one_changed_value_changes_the_digest():
    other = FRAMES.copy()
    other[1, 2, 3, 0] ^= 1
    assert frames_digest(other) != frames_digest(FRAMES)


def test_waves_are_digested_as_little_endian_floats():
    wave = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    assert wave_digest(wave.astype(">f4")) == wave_digest(wave)


def test_files_are_digested_whole():
    assert file_digest(b"abc") == f"sha256:{hashlib.sha256(b'abc').hexdigest()}"
