from dataclasses import replace
from typing import Any

import pytest

from omnireel.acceleration import Acceleration
from omnireel.acceleration.spec import AUTO


@pytest.mark.parametrize("switch", AUTO)
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_on_and_off_are_said_and_auto_is_the_table(switch, platform):
    on: dict[str, Any] = {switch: "on"}
    off: dict[str, Any] = {switch: "off"}
    assert replace(Acceleration(), **on).is_on(switch, platform)
    assert not replace(Acceleration(), **off).is_on(switch, platform)
    assert Acceleration().is_on(switch, platform) == (platform in AUTO[switch])


def test_eager_wins_over_compiling_and_over_nothing_else():
    speed = Acceleration(compile_blocks="on", modulation_tables="on", enforce_eager=True)
    assert not speed.is_on("compile_blocks", "cpu")
    assert speed.is_on("modulation_tables", "cpu")
