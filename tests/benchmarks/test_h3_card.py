import subprocess
import time

import pytest
from benchmarks.h3_card import summary, watched


def test_samples_are_told_as_medians_and_shares():
    told = summary(
        ["1980, 1980, 300.5, 700.00, 40, 0x0000000000000001", "1500, 1980, 699.5, 700.00, 60, 0x0000000000000004"]
    )
    assert told["samples"] == 2
    assert told["clock_mhz"] == {"median": 1740.0, "least": 1500.0, "most": 1980.0}
    assert told["held_back"] == {"power cap": 0.5}


@pytest.mark.parametrize("lines", [[], ['Field "clocks" is not a valid field to query.']])
def test_a_card_that_says_nothing_is_a_problem_that_is_told(lines):
    assert set(summary(lines)) == {"problem"}


def test_it_is_asked_while_the_body_runs_and_left_alone_after(monkeypatch):
    real, started = subprocess.Popen, []

    def stand_in(command, **told):
        script = "while true; do echo '1500, 1980, 699.5, 700, 60, 0x4'; sleep 0.01; done"
        started.append(real(["bash", "-c", script], **told))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", stand_in)
    with watched("cuda") as told:
        assert started[0].poll() is None
        time.sleep(0.3)
    assert started[0].poll() is not None
    assert told["samples"] > 1


def test_nothing_is_asked_of_a_processor():
    with watched("cpu") as told:
        pass
    assert told == {}
