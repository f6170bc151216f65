"""Flags come from fields, keep "not said" apart from "said", and name field, value and allowed in errors."""

import argparse

import pytest

from omnireel.config import RunSpec, add_fields, given, sampling_params
from omnireel.errors import InvalidRequest
from omnireel.request import DiffusionSamplingParams, OutputSpec


def parser_for(spec, **options):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_fields(parser, spec, title="group", **options)
    return parser


def test_a_flag_that_was_not_typed_is_not_given():
    arguments = parser_for(RunSpec).parse_args(["--max-queue", "16"])
    assert given(arguments, RunSpec) == {"max_queue": "16"}


def test_a_switch_has_a_negative():
    arguments = parser_for(OutputSpec).parse_args(["--no-recipe"])
    assert given(arguments, OutputSpec) == {"recipe": False}


def test_skipped_fields_have_no_flag():
    assert "--path" not in parser_for(OutputSpec, skip=("path",)).format_help()


def test_help_tells_unit_default_and_choices():
    text = " ".join(parser_for(RunSpec).format_help().split())
    assert "requests that may wait; one more is refused (default: 16)" in text
    assert "waiting included [s]" in text
    assert "--log-level debug|info|warning|error" in text


def test_sampling_values_get_their_types():
    params = sampling_params({"num_frames": "107", "seconds": "4.5", "extra_args": '{"a": 1}'})
    assert params == DiffusionSamplingParams(num_frames=107, seconds=4.5, extra_args={"a": 1})


def test_a_bad_sampling_value_is_the_callers_mistake():
    with pytest.raises(InvalidRequest) as caught:
        sampling_params({"num_inference_steps": "1.5"})
    assert caught.value.message == "num_inference_steps: '1.5' is not allowed; it must be a whole number"
