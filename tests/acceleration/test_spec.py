from dataclasses import replace
from typing import Any

import pytest

from omnireel.acceleration import Acceleration
from omnireel.acceleration.spec import AUTO, CPU, HOPPER


@pytest.mark.parametrize("switch", AUTO)
@pytest.mark.parametrize("place", [("cpu", ""), ("cuda", "9.0"), ("cuda", "8.0")])
def test_on_and_off_are_said_and_auto_is_the_table(switch, place):
    said = "fused_kernels" if switch == "fused_vae" else switch
    on: dict[str, Any] = {said: "on"}
    off: dict[str, Any] = {said: "off"}
    assert replace(Acceleration(), **on).is_on(switch, *place)
    assert not replace(Acceleration(), **off).is_on(switch, *place)
    known = AUTO[switch].get(" ".join(place).strip())
    assert Acceleration().is_on(switch, *place) == (known is not None and known.is_on)


@pytest.mark.parametrize("switch", AUTO)
def test_of_several_ranks_auto_leaves_out_what_was_not_run_over_them(switch):
    for place in AUTO[switch]:
        alone = Acceleration().is_on(switch, *place.split())
        assert Acceleration(is_shared=True).is_on(switch, *place.split()) == (alone and switch == "modulation_tables")
    asked: dict[str, Any] = {"fused_kernels" if switch == "fused_vae" else switch: "on"}
    assert Acceleration(is_shared=True, **asked).is_on(switch, "cuda", "9.0")


@pytest.mark.parametrize("switch", AUTO)
@pytest.mark.parametrize("place", [("cuda", "8.0"), ("cuda", "10.0"), ("cuda", ""), ("rocm", "gfx942")])
def test_what_was_not_measured_on_an_architecture_is_off_there(switch, place):
    told = Acceleration().verdict(switch, *place)
    assert not told.is_on
    assert told.why == f"not measured on {' '.join(place).strip()}"


def test_the_table_knows_only_what_was_measured():
    assert {place for verdicts in AUTO.values() for place in verdicts} <= {CPU, HOPPER}


def test_eager_wins_over_compiling_and_over_nothing_else():
    speed = Acceleration(compile_blocks="on", modulation_tables="on", enforce_eager=True)
    assert not speed.is_on("compile_blocks", "cpu")
    assert not speed.is_on("compile_vae", "cpu")
    assert speed.verdict("compile_blocks", "cpu").why == "enforce_eager"
    assert speed.is_on("modulation_tables", "cpu")


def test_compiled_blocks_leave_nothing_to_fused_kernels_and_take_the_decoder_along():
    speed = Acceleration(compile_blocks="on")
    assert not speed.is_on("fused_kernels", "cuda", "9.0")
    assert speed.is_on("compile_vae", "cuda", "9.0")
    assert not replace(speed, compile_vae="off").is_on("compile_vae", "cuda", "9.0")


def test_a_decoder_can_be_compiled_beside_fused_kernels():
    speed = Acceleration(fused_kernels="on", compile_vae="on")
    assert speed.is_on("fused_kernels", "cuda", "9.0")
    assert speed.is_on("compile_vae", "cuda", "9.0")
