"""The benchmark of the VAEs runs on the embedded checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_compares_start_up_pictures_and_sound(tmp_path):
    output = tmp_path / "result.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.h3_vae", "--config", "mini", "--repeats", "1", "--output", str(output)],
        cwd=ROOT, check=True, capture_output=True, timeout=120, env={"PYTHONPATH": "src", "PATH": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    start, *compared = json.loads(output.read_text())["cases"]
    assert set(start["median_seconds"]) == {"omnireel", "diffusers", "torch alone"}
    assert len(compared) == 8
    assert all(row["max_difference"] <= 1e-5 for row in compared)
