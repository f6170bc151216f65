import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_measures_each_degree_and_compares_them(tmp_path):
    output = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "h3_ranks.py"), "--config", "tiny", "--device", "cpu"]
    subprocess.run(
        [*command, "--backend", "TORCH_SDPA", "--degrees", "1,2", "--repeats", "1", "--output", str(output)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )
    cases = json.loads(output.read_text())["cases"]
    assert [(case["shape"], case["ranks"]) for case in cases] == [
        ("64x32x22", 1), ("32x32x22", 1), ("64x32x22", 2), ("32x32x22", 2),
    ]  # fmt: skip
    for case in cases[2:]:
        assert all(error < 0.02 for error in case["relative_error"].values())
