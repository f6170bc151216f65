"""Checks give the value or say field, value and what is allowed."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from omnireel.errors import InvalidRequest
from omnireel.models import checks
from omnireel.request import GenerationRequest, OutputSpec


@pytest.mark.parametrize("value", [4, 4.0, 8])
def test_whole_numbers_pass(value):
    assert checks.whole("height", value, 4, 8, multiple=4) == int(value)


@pytest.mark.parametrize("value", [3, 9, 6, 4.5, math.nan, math.inf, "4", None, True, 10**400])
def test_what_is_no_such_whole_number_is_refused(value):
    with pytest.raises(InvalidRequest, match=r"height: .* from 4 to 8 that is a multiple of 4"):
        checks.whole("height", value, 4, 8, multiple=4)


@pytest.mark.parametrize("value", [math.nan, -math.inf, "1", True, 2.1, None, 10**400])
def test_what_is_no_such_number_is_refused(value):
    with pytest.raises(InvalidRequest, match="seconds"):
        checks.number("seconds", value, 0, 2)


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
def test_every_64_bit_seed_passes(seed):
    assert checks.seed_or_random(seed) == seed


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 1.5, math.nan])
def test_other_seeds_are_refused(seed):
    with pytest.raises(InvalidRequest, match="seed"):
        checks.seed_or_random(seed)


def test_drawn_seeds_differ():
    assert len({checks.seed_or_random(None) for _ in range(8)}) > 1


@pytest.mark.parametrize("prompt", ["", " \n\t", None, 3])
def test_prompts_that_say_nothing_are_refused(prompt):
    with pytest.raises(InvalidRequest, match="prompt"):
        checks.prompt_text(prompt)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(InvalidRequest, match=r"extra_args\.flow_shfit") as raised:
        checks.no_unknown("extra_args", {"flow_shfit": 1}, ("flow_shift", "task"))
    assert "'flow_shift'" in raised.value.hint


@pytest.mark.parametrize("prompt", ["a \ud800 ball", "\udcff"])
def test_a_prompt_that_is_no_unicode_is_refused(prompt):
    with pytest.raises(InvalidRequest, match="must be Unicode"):
        checks.prompt_text(prompt)


@pytest.mark.parametrize("given", ["task", ["task"], 5])
def test_what_is_no_mapping_has_no_keys(given):
    with pytest.raises(InvalidRequest, match="an object of names and values"):
        checks.no_unknown("extra_args", given, ("task",))


@pytest.mark.parametrize("key", [5, None, ("task",)])
def test_a_key_that_is_no_text_is_unknown(key):
    with pytest.raises(InvalidRequest, match="known are task"):
        checks.no_unknown("extra_args", {key: 1}, ("task",))


@pytest.mark.parametrize("value", [math.nan, -math.inf, "1", True, None, 10**400])
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(InvalidRequest, match="finite"):
        checks.finite("seconds", value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sampling", None),
        ("output", "a.mp4"),
        ("output.path", OutputSpec(path="a.mp4")),  # type: ignore[arg-type]
        ("output.recipe", OutputSpec(recipe="no")),  # type: ignore[arg-type]
        ("media", None),
        ("media", "a.png"),
        ("media", iter(())),
        ("request_id", 5),
        ("request_id", []),
        ("request_id", ""),
        ("request_id", "a\nERROR forged"),
    ],
)
def test_a_field_of_a_request_of_another_type_is_named(field, value):
    request = replace(GenerationRequest(prompt="x"), **{field.partition(".")[0]: value})
    with pytest.raises(InvalidRequest, match=f"^{re.escape(field)}: "):
        checks.request_types(request)


def test_a_request_of_the_right_types_passes():
    request = GenerationRequest(prompt="x", output=OutputSpec(path=Path("a.mp4")), media=[])  # type: ignore[arg-type]
    assert checks.request_types(request) is request
