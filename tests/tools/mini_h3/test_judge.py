"""The judge reads back what the generator drew; and what it says is false is false."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
from tools.mini_h3.judge import judge

from tools.mini_h3 import data

pytestmark = pytest.mark.slow


def verdict_of(scene: data.Scene, asked: data.Scene | None = None):
    return judge(asked or scene, data.render(scene), data.sound(scene), data.SAMPLE_RATE_HZ)


def test_drawn_clips_are_right_in_every_measure():
    wrong = [seed for seed in range(16) if False in astuple(verdict_of(data.draw_scene(seed)))]
    assert not wrong


def scene_that(moves: str) -> data.Scene:
    return next(scene for seed in range(500) if (scene := data.draw_scene(seed)).motion == moves)


def test_another_colour_shape_and_direction_are_found_out():
    scene = replace(scene_that("right"), colour="red", pitch="red", shape="ring")
    found = verdict_of(scene, replace(scene, colour="blue", pitch="blue", shape="star", motion="left"))
    assert (found.colour, found.shape, found.direction, found.pitch) == (False, False, False, False)


def test_another_change_of_size_is_found_out():
    scene = scene_that("grows")
    assert verdict_of(scene, replace(scene, motion="shrinks")).size_change is False


def test_clicks_that_are_missing_are_found_out():
    scene = scene_that("bounces sideways")
    silent = data.sound(replace(scene, motion="spins"))
    assert judge(scene, data.render(scene), silent, data.SAMPLE_RATE_HZ).onset is False
