"""Held-out requests are the same each time, and a perfect clip gets full marks."""

from types import SimpleNamespace

import numpy as np
import pytest

from omnireel.request import MediaKind
from tools.mini_h3 import data, evaluate

pytestmark = pytest.mark.slow


class Perfect:
    """Stands for an engine: draws what is asked for."""

    def __init__(self, cases):
        self.scenes = {case.request.request_id: case.scene for case in cases}

    def generate(self, requests):
        scene = self.scenes[requests[0].request_id]
        return [SimpleNamespace(frames=data.render(scene), audio=data.sound(scene), sampling_rate=data.SAMPLE_RATE_HZ)]


@pytest.mark.parametrize("task", evaluate.TASKS)
def test_requests_are_of_scenes_that_training_may_not_see_and_the_same_each_time(task):
    first, again = (list(evaluate.cases(task, 6)) for _ in range(2))
    assert all(case.scene.is_held_out for case in first)
    assert [case.request.prompt for case in first] == [case.request.prompt for case in again]
    assert [case.scene for case in first] == [case.scene for case in again]
    kinds = {"t2va": [], "fl2va": [MediaKind.IMAGE], "ref2va": [MediaKind.IMAGE, MediaKind.AUDIO]}[task]
    assert [medium.kind for medium in first[0].request.media] == kinds


@pytest.mark.parametrize("task", evaluate.TASKS)
def test_a_perfect_clip_reaches_every_bar(task):
    asked = list(evaluate.cases(task, 12))
    told = evaluate.score(Perfect(asked), asked, evaluate.BARS[task])
    for measure, bar in evaluate.BARS[task].items():
        assert told[measure].get("right", told[measure].get("median")) >= bar
    assert told["clips"] == 12


def test_a_reference_asks_for_a_pitch_that_is_not_the_colours_own():
    assert all(case.scene.pitch != case.scene.colour for case in evaluate.cases("ref2va", 6))


def test_signal_to_noise_of_pictures():
    flat = np.full((4, 4, 3), 100, np.uint8)
    assert evaluate.psnr_db(flat, flat + np.uint8(1)) == pytest.approx(48.13, abs=0.01)
