"""A recipe survives the file."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from omnireel.errors import MediaUnreadable
from omnireel.media.encode import write_clip
from omnireel.media.recipe import read_recipe, recipe_from_json, recipe_to_json
from omnireel.request import MediaOutput, Recipe

RECIPE = Recipe(
    model="mini-h3",
    weights_digest="sampled-sha256:0",
    prompt='quotes " and \\ and\nlines \u00e9 \u4e2d \U0001f600' * 500,
    sampling={"height": 32, "extra_args": {"a": [1, None]}},
    engine={"device": "cpu"},
    versions={"torch": "2"},
    frames_digest="sha256:1",
    wave_digest="",
)


def clip() -> MediaOutput:
    return MediaOutput(frames=np.zeros((2, 32, 32, 3), np.uint8), fps=24.0)


def test_a_recipe_comes_back_from_a_clip_exactly(tmp_path):
    write_clip(clip(), tmp_path / "a.mp4", recipe=RECIPE)
    assert read_recipe(tmp_path / "a.mp4") == RECIPE


def test_a_clip_without_one_says_so(tmp_path):
    write_clip(clip(), tmp_path / "a.mp4")
    with pytest.raises(MediaUnreadable, match="has no recipe") as raised:
        read_recipe(tmp_path / "a.mp4")
    assert "--no-recipe" in raised.value.hint


def test_a_missing_file_a_folder_and_a_text_are_told_apart(tmp_path):
    (tmp_path / "text.mp4").write_text("hello")
    for name, problem in (("gone.mp4", "does not exist"), (".", "is not a file"), ("text.mp4", "cannot be read")):
        with pytest.raises(MediaUnreadable, match=problem):
            read_recipe(tmp_path / name)


def test_a_cut_short_clip_is_refused(tmp_path):
    write_clip(clip(), tmp_path / "a.mp4", recipe=RECIPE)
    data = (tmp_path / "a.mp4").read_bytes()
    (tmp_path / "a.mp4").write_bytes(data[:200])
    with pytest.raises(MediaUnreadable):
        read_recipe(tmp_path / "a.mp4")


@pytest.mark.parametrize("text", ["", "a holiday", "[]", "{}", '{"omnireel_recipe": 3}'])
def test_other_comments_are_not_taken_for_a_recipe(text):
    with pytest.raises(MediaUnreadable):
        recipe_from_json(text, name="a.mp4")


def test_a_recipe_with_other_fields_is_of_another_version():
    text = recipe_to_json(RECIPE).replace('"model"', '"modell"')
    with pytest.raises(MediaUnreadable, match="another version"):
        recipe_from_json(text, name="a.mp4")


def test_the_json_holds_every_field():
    assert recipe_from_json(recipe_to_json(RECIPE), name="x") == dataclasses.replace(RECIPE)
