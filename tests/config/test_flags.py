"""Flags come from fields, keep "not said" apart from "said", and name field, value and allowed in errors."""

import argparse
from collections.abc import Mapping

import pytest

from omnireel.config import RunSpec, add_fields, add_settings, all_settings, given, given_settings, sampling_params
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


@pytest.mark.parametrize("name", list(all_settings()))
def test_every_setting_is_a_flag_that_takes_its_value(name):
    item = all_settings()[name]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_settings(parser)
    typed = [item.flag] if item.kind is bool else [item.flag, "{}" if item.kind is Mapping else "1"]
    found = given_settings(parser.parse_args(typed))
    assert found == {name: True if item.kind is bool else {} if item.kind is Mapping else "1"}
    assert (item.flag in parser.format_help()) == (not item.pending)


def test_a_flag_that_the_parser_has_is_no_setting():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_fields(parser, DiffusionSamplingParams, title="sampling")
    add_settings(parser)
    arguments = parser.parse_args(["--seed", "3", "--usp", "2", "--dlo-no-use-allgather"])
    assert given_settings(arguments) == {"ulysses_degree": "2", "dlo_use_allgather": False}
