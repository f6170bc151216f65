import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_step_benchmark_runs_without_a_card_and_says_how_it_was_run(tmp_path):
    output = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "h3_step.py"), "--config", "tiny", "--device", "cpu"]
    subprocess.run(
        [*command, "--diffusers", "--profile", "--output", str(output)],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    result = json.loads(output.read_text())
    assert [(case["engine"], case["shape"], case["rows"]) for case in result["cases"]] == [
        ("omnireel", "64x32x22", 97),
        ("omnireel", "32x32x22", 209),
        ("diffusers", "64x32x22", 97),
        ("diffusers", "32x32x22", 209),
    ]
    assert {error["against"] for error in result["errors"]} == {"float32 omnireel", "diffusers, same backend"}
    assert all(value < 0.02 for error in result["errors"] for value in error["relative"].values())
    assert result["environment"]["command"][1:3] == ["--config", "tiny"]
    assert result["skipped"] == []
    assert result["profile"]["families"]
