"""A picture is written as it is."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from omnireel.errors import InvalidRequest
from omnireel.media.image import write_picture


def test_a_png_comes_back_exactly(tmp_path):
    frame = np.random.default_rng(0).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    write_picture(frame, tmp_path / "a.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), frame)


def test_an_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="must end in"):
        write_picture(np.zeros((2, 2, 3), np.uint8), tmp_path / "a.exe")


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".webp"])
def test_formats_that_lose_something_lose_little(tmp_path, suffix):
    ramp = np.linspace(0, 255, 64).astype(np.uint8)
    frame = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None, :], ramp[::-1][None, :]), axis=-1)
    write_picture(frame, tmp_path / f"a{suffix}")
    shown = np.asarray(Image.open(tmp_path / f"a{suffix}")).astype(int)
    assert np.abs(shown - frame).mean() < 3


@pytest.mark.parametrize(
    "frame", [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3), np.float32), np.zeros((0, 2, 3), np.uint8)]
)
def test_what_is_no_picture_is_refused(tmp_path, frame):
    with pytest.raises(InvalidRequest, match="must be uint8"):
        write_picture(frame, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
