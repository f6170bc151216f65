import json
import subprocess

from benchmarks.h3_check import checked, main

CRASH = """
import os, sys
sys.argv[0] = "h3_check"
from benchmarks import h3_check
made = list(h3_check.items("tiny", "cpu"))
h3_check.items = lambda config, kind: [(made[0][0], 1.0, lambda: os._exit(7)), ("other", 1.0, lambda: 2.0), made[1]]
h3_check.main()
"""


def test_attention_on_a_processor_is_right(tmp_path):
    output = tmp_path / "checks.jsonl"
    main(["--config", "tiny", "--device", "cpu", "--output", str(output), "--skip", "attention TORCH_SDPA 64"])
    begun, told = map(json.loads, output.read_text().splitlines())
    assert begun == {"item": "attention TORCH_SDPA 128"}
    assert told["is_right"]
    assert 0 < told["relative_difference"] < 5e-3


def test_an_item_that_ends_its_process_is_wrong_and_the_others_are_told(tmp_path, monkeypatch):
    real = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda command, **told: real([command[0], "-c", CRASH, *command[3:]], **told)
    )
    told = checked("tiny", "cpu", tmp_path)
    assert not told["attention TORCH_SDPA 128"]["is_right"]
    assert told["attention TORCH_SDPA 128"]["problem"].startswith("exit 7")
    assert not told["other"]["is_right"]
    assert told["attention TORCH_SDPA 64"]["is_right"]
