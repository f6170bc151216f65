"""Scenes come from their seed alone, fill what was promised, and can be told in many ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tools.mini_h3 import data


def test_a_seed_is_a_scene():
    assert data.draw_scene(5) == data.draw_scene(5)
    assert data.caption(data.draw_scene(5)) == data.caption(data.draw_scene(5))


def test_the_world_is_as_wide_as_promised():
    scenes = [data.draw_scene(seed) for seed in range(600)]
    assert {scene.colour for scene in scenes} == set(data.COLOURS)
    assert {scene.shape for scene in scenes} == set(data.SHAPES)
    assert {scene.motion for scene in scenes} == set(data.MOTIONS)
    assert {scene.background for scene in scenes} == set(data.BACKGROUNDS)
    assert 0.05 < np.mean([scene.is_held_out for scene in scenes]) < 0.15


@pytest.mark.parametrize("seed", range(12))
def test_the_shape_stays_on_the_canvas(seed):
    path = data.track(data.draw_scene(seed))
    assert (path.centre > 0).all()
    assert (path.centre < (data.WIDTH, data.HEIGHT)).all()


def test_a_clip_and_its_sound_are_as_long_as_asked():
    scene = data.draw_scene(3, 39)
    assert data.render(scene).shape == (39, data.HEIGHT, data.WIDTH, 3)
    assert data.sound(scene).shape == (2, 52_000)


def test_every_pitch_fills_whole_latents():
    assert all(pitch % 40 == 0 for pitch in data.PITCHES_HZ.values())


def test_the_pitch_may_be_another_than_the_colour_says():
    scene = replace(data.draw_scene(1), colour="red", pitch="red")
    assert not np.array_equal(data.sound(scene), data.sound(replace(scene, pitch="white")))


def test_captions_vary_and_name_what_is_there():
    scene = replace(data.draw_scene(2), colour="orange", pitch="orange")
    rng = np.random.default_rng(0)
    told = {data.caption(scene, rng) for _ in range(100)}
    assert len(told) > 40
    assert all("orange" in text.lower() for text in told)


def test_a_reference_leaves_colour_and_shape_to_the_picture():
    scene = replace(data.draw_scene(2), colour="orange", pitch="orange")
    rng = np.random.default_rng(0)
    told = [data.reference_caption(scene, rng, has_recording=True).lower() for _ in range(50)]
    assert not [text for text in told if "orange" in text or not ("audio 1" in text or "recording" in text)]
