"""Names, sections and the pieces of dotted flags."""

import pytest

from omnireel.config.sources import DEFAULT
from omnireel.config.written import put_together, said, split_stages


def names(written):
    return [(item.name, item.shown, item.value) for item in said(written, lambda _: DEFAULT)]


def test_names_are_canonical_and_sections_are_opened():
    assert names({"num-threads": 1, "usp": 2, "parallel_config": {"ring": 3, "dtype": "x"}, "odd": 4}) == [
        ("num_threads", "num_threads", 1),
        ("ulysses_degree", "usp", 2),
        ("ring_degree", "parallel_config.ring", 3),
        ("", "parallel_config.dtype", "x"),
        ("", "odd", 4),
    ]


@pytest.mark.parametrize(("value", "expected"), [(True, False), ("false", True), ("maybe", "maybe")])
def test_an_opposite_alias_turns_its_value_round(value, expected):
    assert names({"dlo_no_use_allgather": value}) == [("dlo_use_allgather", "dlo_no_use_allgather", expected)]


def test_flags_of_stages_are_told_from_flags_that_begin_alike():
    wide, staged = split_stages({"stage_0_dtype": 1, "stage_12_usp": 2, "stage_id": 3, "stage_x_dtype": 4})
    assert wide == {"stage_id": 3, "stage_x_dtype": 4}
    assert staged == {0: {"dtype": 1}, 12: {"usp": 2}}


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (['{"a": 1}'], {"a": 1}),
        ([".a.b=x", ".a.c=1"], {"a": {"b": "x", "c": "1"}}),
        (['{"a": {"b": 1, "c": 2}}', ".a.b=x=y"], {"a": {"b": "x=y", "c": 2}}),
        ([".per-role.cross=x"], {"per_role": {"cross": "x"}}),
        (["{"], "{"),
        ([".a=1", "[1]"], "[1]"),
    ],
)
def test_pieces_become_one_mapping(pieces, expected):
    assert put_together(pieces) == expected
