"""The benchmark of references runs at tiny sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_runs_and_writes_every_case(tmp_path):
    subprocess.run(
        [sys.executable, "-m",
            "benchmarks.h3_references", "--config", "tiny", "--steps", "1", "--output", str(tmp_path / "r.json")],
        cwd=ROOT, check=True, capture_output=True, timeout=55, env={"PYTHONPATH": "src", "PATH": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    result = json.loads((tmp_path / "r.json").read_text())
    assert len(result["cases"]) == 9
    assert result["environment"]["command"][0] == "h3_references.py"
