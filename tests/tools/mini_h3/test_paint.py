"""What torch paints for many scenes is what numpy draws for one."""

from __future__ import annotations

import numpy as np
import torch
from tools.mini_h3.paint import Painter, Scenes

from tools.mini_h3 import data

PAINTER = Painter(torch.device("cpu"))
DRAWN = [data.draw_scene(seed) for seed in range(8)]
FRAMES = [0, 40, data.NUM_FRAMES - 1]


def test_pictures_are_equal_within_a_level():
    made, _ = PAINTER.pictures(Scenes.of(DRAWN), torch.tensor([FRAMES] * len(DRAWN)))
    for scene, frames in zip(DRAWN, made, strict=True):
        expected = data.render(scene)[FRAMES].astype(int)
        assert np.abs((255 * frames.numpy()).round().astype(int) - expected).max() <= 1


def test_waves_are_equal():
    for scene, wave in zip(DRAWN, PAINTER.waves(Scenes.of(DRAWN)), strict=True):
        assert np.abs(wave.numpy() - data.sound(scene)).max() < 2e-4
