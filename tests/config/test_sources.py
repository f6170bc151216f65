"""A source in words."""

import pytest

from omnireel.config import Source


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Source(kind="default"), "default"),
        (Source(kind="environment", name="OMNIREEL_DEVICE"), "environment OMNIREEL_DEVICE"),
        (Source(kind="flag", name="--device"), "flag --device"),
    ],
)
def test_a_source_says_where_to_look(source, words):
    assert str(source) == words
