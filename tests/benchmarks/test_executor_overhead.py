"""The benchmark of executors runs, and its summary follows from its times."""

from __future__ import annotations

import pytest
from benchmarks.executor_overhead import _summary, measured


@pytest.mark.slow
def test_it_measures_every_case_in_both_places():
    result = measured(2, 1)
    assert {name: {key: len(row) for key, row in times.items()} for name, times in result["cases"].items()} == {
        "few_steps": {"uni": 2, "mp": 2},
        "many_steps": {"uni": 2, "mp": 2},
        "large_frames": {"uni": 1, "mp": 1},
    }
    assert result["summary"]["ratio_few_steps"] > 0


def test_what_a_step_costs_is_told_from_what_a_request_costs():
    cases = {
        "few_steps": {"uni": [10.0], "mp": [13.5]},
        "many_steps": {"uni": [100.0], "mp": [153.5]},
        "large_frames": {"uni": [5.0], "mp": [6.0]},
    }
    summary = _summary(cases)
    assert summary["extra_ms_a_step"] == 0.5
    assert summary["extra_ms_a_request"] == 3.0
    assert summary["ratio_few_steps"] == 1.35
