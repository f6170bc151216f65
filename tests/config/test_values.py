"""Text and typed values become the type of their field, or a sentence saying what is allowed."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from omnireel.config import convert, settings_of
from omnireel.request import DiffusionSamplingParams, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One field of each type."""

    count: int = setting(1, "count", minimum=1, maximum=999)
    seed: int | None = setting(None, "seed")
    rate: float | None = setting(None, "rate")
    word: str = setting("a", "word", choices=("a", "b"))
    text: str | None = setting(None, "text")
    switch: bool = setting(True, "switch")
    file: Path | None = setting(None, "file")
    more: Mapping[str, Any] | None = setting(None, "more")


SETTINGS = {item.name: item for item in settings_of(Sample)}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", "107", 107),
        ("count", " 7 ", 7),
        ("count", 3, 3),
        ("seed", "-1", -1),
        ("seed", "9223372036854775807", 2**63 - 1),
        ("seed", None, None),
        ("rate", "1.5", 1.5),
        ("rate", "-2e3", -2000.0),
        ("rate", 3, 3.0),
        ("rate", "0", 0.0),
        ("word", "b", "b"),
        ("text", "", ""),
        ("text", "1", "1"),
        ("switch", "false", False),
        ("switch", "1", True),
        ("switch", False, False),
        ("file", "a b.mp4", Path("a b.mp4")),
        ("more", '{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ("more", {"a": 1}, {"a": 1}),
    ],
)
def test_an_allowed_value_gets_the_type_of_its_field(name, value, expected):
    result = convert(SETTINGS[name], value)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("count", "1.5", "a whole number, at least 1, at most 999"),
        ("count", "1000", "a whole number, at least 1, at most 999"),
        ("count", "0", "a whole number, at least 1, at most 999"),
        ("count", None, "a whole number, at least 1, at most 999"),
        ("count", True, "a whole number, at least 1, at most 999"),
        ("count", "1_000", "a whole number, at least 1, at most 999"),
        ("count", "", "a whole number, at least 1, at most 999"),
        ("seed", "1e3", "a whole number"),
        ("seed", 1.0, "a whole number"),
        ("seed", "9" * 5000, "a whole number"),
        ("rate", "nan", "a finite number"),
        ("rate", "-inf", "a finite number"),
        ("rate", "1e999", "a finite number"),
        ("rate", float("nan"), "a finite number"),
        ("rate", True, "a finite number"),
        ("rate", "1_0", "a finite number"),
        ("rate", "fast", "a finite number"),
        ("word", "c", "a or b"),
        ("text", 5, "text"),
        ("switch", "maybe", "true or false"),
        ("switch", 1, "true or false"),
        ("file", "", "a file name"),
        ("more", "[1]", "a JSON object"),
        ("more", "{", "a JSON object"),
        ("more", '{"a": NaN}', "a JSON object"),
        ("more", '{"a": -Infinity}', "a JSON object"),
    ],
)
def test_any_other_value_is_refused_with_what_is_allowed(name, value, allowed):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
        convert(SETTINGS[name], value)
    assert str(caught.value) == f"it must be {allowed}"


def test_a_field_of_an_unknown_type_is_a_bug_of_its_spec():
    @dataclass
    class Odd:
        """A field that no text can be."""

        pair: tuple[int, int] = setting((1, 2), "pair")

    with pytest.raises(TypeError, match="pair"):
        settings_of(Odd)


def test_every_sampling_field_is_a_setting():
    assert [item.name for item in settings_of(DiffusionSamplingParams)] == [
        item.name for item in fields(DiffusionSamplingParams)
    ]
