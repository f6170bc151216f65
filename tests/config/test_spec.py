"""Rules that every spec keeps."""

import pytest

from omnireel.config import AccelerationSpec, AttentionFlags, ModelSpec, RunSpec, convert, engine_settings, settings_of

SPECS = (ModelSpec, AttentionFlags, AccelerationSpec, RunSpec)


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_has_at_most_25_fields(spec):
    assert 1 <= len(settings_of(spec)) <= 25


def test_no_name_is_declared_twice():
    assert len(engine_settings()) == sum(len(settings_of(spec)) for spec in SPECS)


@pytest.mark.parametrize("item", engine_settings().values(), ids=str)
def test_a_default_is_an_allowed_value(item):
    assert convert(item, item.default) == item.default


@pytest.mark.parametrize("item", engine_settings().values(), ids=str)
def test_help_is_one_line_without_a_full_stop(item):
    assert item.help
    assert "\n" not in item.help
    assert not item.help.endswith(".")
