"""The shipped miniature is what its builder writes, and gives a clip that can be looked at and listened to."""

import filecmp
from pathlib import Path

import numpy as np
import pytest

import omnireel.models.minimax_h3.facts
from omnireel.api import Omni
from omnireel.request import DiffusionSamplingParams

pytestmark = pytest.mark.slow

SHIPPED = Path(omnireel.models.minimax_h3.facts.__file__).parent / "mini"
PROMPTS = ("a red ball bounces", "waves of the sea at night")


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_builder_writes_the_shipped_files_byte_by_byte(tmp_path):
    from tools.mini_h3.build import build

    build(tmp_path / "mini", seed=0)
    names = files_of(SHIPPED)
    assert files_of(tmp_path / "mini") == names
    _, differing, unread = filecmp.cmpfiles(SHIPPED, tmp_path / "mini", names, shallow=False)
    assert (differing, unread) == ([], [])


def test_the_package_stays_small():
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 25e6


@pytest.fixture(scope="module")
def clips():
    """Frames as int [T,H,W,3] and wave [2,N] for each prompt, all of one seed."""
    with Omni("mini-h3") as omni:
        results = omni.generate(list(PROMPTS), DiffusionSamplingParams(seed=3))
    assert all(result.frames is not None and result.audio is not None for result in results)
    return [(np.asarray(result.frames, int), np.asarray(result.audio)) for result in results]


def test_neighbouring_pixels_have_nearly_one_colour(clips):
    for frames, _ in clips:
        for axis in (1, 2):
            assert np.abs(np.diff(frames, axis=axis)).mean() < 2


def test_edges_of_patches_do_not_show(clips):
    for frames, _ in clips:
        steps = np.abs(np.diff(frames, axis=2)).mean((0, 1, 3))
        assert steps[15::16].mean() < 1.5


def test_the_picture_has_colours_and_they_change(clips):
    for frames, _ in clips:
        assert frames.std((1, 2)).mean() > 15
        assert 1 < np.abs(np.diff(frames, axis=0)).mean() < 10


def test_few_pixels_are_at_the_ends_of_the_range(clips):
    for frames, _ in clips:
        assert ((frames == 0) | (frames == 255)).mean() < 0.1


def test_words_change_the_picture(clips):
    assert np.abs(clips[0][0] - clips[1][0]).mean() > 5


def test_the_sound_is_heard_and_does_not_hurt(clips):
    for _, wave in clips:
        assert -30 < 20 * np.log10(wave.std()) < -15
        assert np.abs(wave).max() < 0.7
        assert np.abs(wave.mean(1)).max() < 0.01


def test_the_sound_lies_where_voices_lie(clips):
    for _, wave in clips:
        power = np.abs(np.fft.rfft(wave)) ** 2
        hertz = np.fft.rfftfreq(wave.shape[1], 1 / 32000)
        assert power[:, (hertz > 100) & (hertz < 1000)].sum() > 0.8 * power.sum()


def test_the_two_ears_hear_different_things(clips):
    for _, wave in clips:
        assert np.corrcoef(wave)[0, 1] < 0.9
