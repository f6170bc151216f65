"""A recipe survives the file."""

from __future__ import annotations

import dataclasses
import json

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


@pytest.mark.parametrize("prompt", ["", "x" * 100_000, "\U0001f600" * 20_000, "a\0b", "\udc80", "\r\n\t\"'\\"])
def test_any_prompt_comes_back(tmp_path, prompt):
    recipe = dataclasses.replace(RECIPE, prompt=prompt)
    write_clip(clip(), tmp_path / "a.mp4", recipe=recipe)
    assert read_recipe(tmp_path / "a.mp4").prompt == prompt


def test_a_clip_without_one_says_so(tmp_path):
    write_clip(clip(), tmp_path / "a.mp4")
    with pytest.raises(MediaUnreadable, match="has no recipe") as raised:
        read_recipe(tmp_path / "a.mp4")
    assert "--no-recipe" in raised.value.hint


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gone.mp4", "does not exist"),
        (".", "is not a file"),
        ("text.mp4", "cannot be read"),
        ("empty.mp4", "cannot be read"),
        ("x" * 300, "name too long"),
        ("a\0b", "null"),
    ],
)
def test_what_is_no_clip_says_why_and_what_to_do(tmp_path, name, problem):
    (tmp_path / "text.mp4").write_text("hello")
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(MediaUnreadable, match=problem) as raised:
        read_recipe(tmp_path / name)
    assert "omnireel" in raised.value.hint


def test_a_clip_cut_off_in_its_index_is_refused(tmp_path):
    write_clip(clip(), tmp_path / "a.mp4", recipe=RECIPE)
    data = (tmp_path / "a.mp4").read_bytes()
    (tmp_path / "a.mp4").write_bytes(data[: data.index(b"mdat") // 2])
    with pytest.raises(MediaUnreadable):
        read_recipe(tmp_path / "a.mp4")


def test_a_clip_cut_off_in_its_pictures_still_has_its_recipe(tmp_path):
    write_clip(clip(), tmp_path / "a.mp4", recipe=RECIPE)
    data = (tmp_path / "a.mp4").read_bytes()
    (tmp_path / "a.mp4").write_bytes(data[: data.index(b"mdat") + 20])
    assert read_recipe(tmp_path / "a.mp4") == RECIPE


@pytest.mark.parametrize("text", ["", "a holiday", "[]", "{}", '{"omnireel_recipe": 3}', "[" * 100_000])
def test_other_comments_are_not_taken_for_a_recipe(text):
    with pytest.raises(MediaUnreadable):
        recipe_from_json(text, name="a.mp4")


def test_a_recipe_with_other_fields_is_of_another_version():
    text = recipe_to_json(RECIPE).replace('"model"', '"modell"')
    with pytest.raises(MediaUnreadable, match="another version"):
        recipe_from_json(text, name="a.mp4")


def test_the_json_holds_every_field():
    assert recipe_from_json(recipe_to_json(RECIPE), name="x") == dataclasses.replace(RECIPE)


@pytest.mark.parametrize(
    ("field", "value"),
    [("prompt", 3), ("model", None), ("sampling", []), ("engine", "cpu"), ("versions", {"torch": 2}), ("media", {})],
)
def test_a_recipe_with_a_value_of_another_type_is_damaged(field, value):
    data = json.loads(recipe_to_json(RECIPE))
    data["omnireel_recipe"][field] = value
    with pytest.raises(MediaUnreadable, match="damaged"):
        recipe_from_json(json.dumps(data), name="a.mp4")
