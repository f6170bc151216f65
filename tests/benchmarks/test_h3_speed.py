import json

import torch
from benchmarks.h3_speed import Speed, main


def test_it_runs_its_sections_and_keeps_what_fails(tmp_path):
    output = tmp_path / "result.json"
    options = ["--config", "tiny", "--device", "cpu", "--backends", "TORCH_SDPA", "NO_SUCH", "--layers", "1"]
    main([*options, "--output", str(output), "--only", "tables", "full", "kernels"])
    result = json.loads(output.read_text())
    rows = {row["case"]: row for row in result["rows"] if "case" in row}
    assert rows["tables from the host"]["is_bit_equal"] == [True, True, True]
    assert rows["full step 64x32x22"]["median_seconds"] > 0
    assert rows["kernels"]["skipped"]
    assert result["errors"] == {}
    torch._dynamo.reset()


def test_a_spent_budget_skips_sections(tmp_path):
    output = tmp_path / "result.json"
    main(["--config", "tiny", "--device", "cpu", "--output", str(output), "--budget-s", "-1"])
    assert len(json.loads(output.read_text())["skipped"]) == 9


def test_a_section_that_fails_leaves_its_error_and_the_next_one_runs(tmp_path, monkeypatch):
    def broken(self):
        raise RuntimeError("the card fell off")

    monkeypatch.setattr(Speed, "kernels", broken)
    output = tmp_path / "result.json"
    main(["--config", "tiny", "--device", "cpu", "--only", "kernels", "tables", "--output", str(output)])
    result = json.loads(output.read_text())
    assert "the card fell off" in result["errors"]["kernels"]
    assert any(row.get("case") == "tables from the host" for row in result["rows"])
