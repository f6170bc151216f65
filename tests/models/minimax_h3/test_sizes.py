"""Values of a config are like the defaults they replace, or refused by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from omnireel.models.minimax_h3.sizes import read_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    width: int = 4
    drop: int = 1
    eps: float = 1e-6
    mode: str = "reflect"
    rates: tuple[int, ...] = (2, 2)
    dilations: tuple[tuple[int, ...], ...] = ((1, 3),)
    mean: tuple[float, ...] = (0.0,)
    other: tuple[float, ...] | None = None


def read(**config: object) -> Sizes:
    return read_sizes(Sizes, config, may_be_zero=("drop",))


def test_what_is_not_said_stays():
    assert read() == Sizes()


def test_lists_become_tuples_at_every_depth():
    made = read(rates=[3, 5], dilations=[[1], [2, 4]], mean=[-1, 0.5], other=[7])
    assert (made.rates, made.dilations, made.mean, made.other) == ((3, 5), ((1,), (2, 4)), (-1, 0.5), (7,))


def test_what_describes_the_file_is_passed_over():
    assert read(_class_name="X", _diffusers_version=None) == Sizes()


def test_zero_is_a_size_only_where_it_is_said():
    assert read(drop=0).drop == 0
    with pytest.raises(ValueError, match="width must be a positive whole number, got 0"):
        read(width=0)


@pytest.mark.parametrize("key", ["width", "drop", "eps", "mode", "rates", "dilations", "mean"])
@pytest.mark.parametrize("value", [None, True, -1, math.nan, math.inf, {}, [None], [True], [math.nan], ["2"], 10**400])
def test_a_value_of_another_kind_is_named(key, value):
    with pytest.raises(ValueError, match=f"^{key} must be a "):
        read(**{key: value})


def test_an_unknown_key_is_named():
    with pytest.raises(ValueError, match="unknown keys depth, heads"):
        read(heads=8, depth=2)
