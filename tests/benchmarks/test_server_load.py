"""The benchmark of the server runs for a moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_runs_and_writes_every_case(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "benchmarks.server_load",
            "--rate", "20", "--seconds", "0.3", "--output", str(tmp_path / "r.json")],
        cwd=ROOT, check=True, capture_output=True, timeout=100,
        env={"PYTHONPATH": "src", "PATH": os.defpath, "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
    )  # fmt: skip
    result = json.loads((tmp_path / "r.json").read_text())
    assert [case["executor"] for case in result["cases"]] == ["mp"] * 10 + ["uni"] * 10
    assert all(case["p99_ms"] >= case["p50_ms"] > 0 for case in result["cases"])
