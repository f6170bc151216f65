import json

import pytest
import torch
from benchmarks.h3_parts import DEFAULT, Parts
from benchmarks.h3_step import main

TINY = ["--config", "tiny", "--device", "cpu"]


def run(output, *options):
    main([*TINY, "--output", str(output), *options])
    torch._dynamo.reset()
    return json.loads(output.read_text())


def cases(result):
    return {row["case"]: row for row in result["rows"] if "case" in row}


def test_parts_that_are_done_are_kept_and_not_run_again(tmp_path, monkeypatch):
    output = tmp_path / "result.json"
    first = run(output, "--parts", "kernels,memory")
    assert first["done"] == ["kernels", "memory"]
    assert first["errors"] == {}
    assert cases(first)["memory of a service, two DiTs"]["median_seconds"] > 0

    def broken(self):
        raise RuntimeError("the card fell off")

    monkeypatch.setattr(Parts, "memory", broken)
    monkeypatch.setattr(Parts, "gaps", broken)
    second = run(output, "--parts", "memory,gaps")
    assert second["done"] == ["kernels", "memory"]
    assert "the card fell off" in second["errors"]["gaps"]
    assert cases(second)["memory of a service, two DiTs"] == cases(first)["memory of a service, two DiTs"]
    again = run(output, "--parts", "memory", "--again")
    assert again["done"] == []
    assert "memory" in again["errors"]


def test_an_unknown_part_is_told_with_the_known_ones(tmp_path):
    with pytest.raises(SystemExit, match="no part is called stp; parts are step, mini"):
        run(tmp_path / "result.json", "--parts", "stp")


def test_a_spent_budget_leaves_parts_out(tmp_path):
    result = run(tmp_path / "result.json", "--parts", "kernels,gaps", "--budget-seconds", "-1")
    assert (result["skipped"], result["done"]) == (["kernels", "gaps"], [])


def test_the_environment_says_which_attention_was_there(tmp_path):
    environment = run(tmp_path / "result.json", "--parts", "kernels")["environment"]
    assert environment["attention"]["TORCH_SDPA"] == "available"
    assert "not on cpu" in environment["attention"]["CUDNN_ATTN"]


@pytest.mark.slow
def test_the_step_is_measured_beside_the_public_implementation(tmp_path):
    result = run(tmp_path / "result.json", "--parts", "step", "--layers", "1", "--repeats", "1")
    assert result["errors"] == {}
    rows = cases(result)
    for shape in ("64x32x22", "32x32x22"):
        row = rows[f"step {shape}"]
        assert row["times_diffusers"] == pytest.approx(row["diffusers_seconds"] / row["median_seconds"])
    differences = [row["difference"]["relative_difference"] for name, row in rows.items() if name.startswith("mode ")]
    assert len(differences) == 2
    assert max(differences) < 1e-2


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_every_bar_is_measured_without_a_card(tmp_path):
    result = run(tmp_path / "result.json", "--parts", ",".join(DEFAULT))
    assert result["done"] == list(DEFAULT)
    assert result["errors"] == {}
    rows = cases(result)
    assert rows["mini plain TORCH_SDPA, as a graph"]["times_diffusers"] > 0
    assert rows["decode compiled, 4 tiles at once, direct"]["largest_level_difference"] <= 1
    assert rows["encode a clip"]["median_seconds"] > 0
