"""Errors as data, as text, and the nearest word."""

from __future__ import annotations

import pytest

from omnireel.errors import (
    BadCheckpoint,
    EngineError,
    InvalidRequest,
    OmniReelError,
    OutOfMemory,
    QueueFull,
    UnknownModel,
    nearest,
)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("seed", 1.5, "it must be a whole number", hint="try 1"),
        BadCheckpoint("vae/x.safetensors", "is cut short", key="a", expected="8 bytes", found="4 bytes"),
        OutOfMemory("decode", 2**30, None),
        QueueFull(3, 12.0),
    ],
)
def test_an_error_crosses_a_border_as_data(error):
    back = OmniReelError.from_dict(error.to_dict())
    assert type(back) is type(error)
    assert (str(back), back.hint, back.details) == (str(error), error.hint, error.details)


def test_an_error_of_a_later_version_is_still_an_engine_error():
    back = OmniReelError.from_dict({"code": "sunspots", "message": "m", "hint": "", "details": {}})
    assert type(back) is EngineError


def test_a_long_value_is_shown_in_part():
    assert len(str(InvalidRequest("prompt", "x" * 5000, "it is too long"))) < 200


def test_a_checkpoint_error_says_file_key_expected_and_found():
    text = str(BadCheckpoint("a/b", "is wrong", key="k", expected="e", found="f"))
    assert text == "a/b: is wrong, key k, expected e, found f"


def test_an_unknown_model_names_the_nearest_and_all():
    error = UnknownModel("mini-h4", ["toy", "mini-h3"])
    assert "mini-h3, toy" in error.message
    assert error.hint == "did you mean 'mini-h3'?"


def test_nothing_is_near_to_nonsense():
    assert nearest("qqqqq", ["seed", "steps"]) is None
    assert nearest("sead", ["seed", "steps"]) == "seed"


def test_an_unknown_model_lists_nothing_where_nothing_is_known():
    assert UnknownModel("mini-h4", []).message == "unknown model 'mini-h4'"
