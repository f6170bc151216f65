import json
import time
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from benchmarks.h3_parts import DEFAULT, Parts
from benchmarks.h3_step import main, parse

from omnireel.layers import PLAIN

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
    assert set(cases(first)["memory of a service, 2 DiT"]["peaks"]) == {"encode", "step", "decode"}

    def broken(self):
        raise RuntimeError("the card fell off")

    monkeypatch.setattr(Parts, "memory", broken)
    monkeypatch.setattr(Parts, "gaps", broken)
    second = run(output, "--parts", "memory,gaps")
    assert second["done"] == ["kernels", "memory"]
    assert "the card fell off" in second["errors"]["gaps"]
    assert cases(second)["memory of a service, 2 DiT"] == cases(first)["memory of a service, 2 DiT"]
    again = run(output, "--parts", "memory", "--again")
    assert again["done"] == []
    assert "memory" in again["errors"]


def test_an_unknown_part_is_told_with_the_known_ones(tmp_path):
    with pytest.raises(SystemExit, match="no part is called stp; parts are check, attention, step, smaller"):
        run(tmp_path / "result.json", "--parts", "stp")


def test_a_spent_budget_leaves_parts_out(tmp_path):
    result = run(tmp_path / "result.json", "--parts", "kernels,gaps", "--budget-seconds", "-1")
    assert (result["skipped"], result["done"]) == (["kernels", "gaps"], [])


def test_the_environment_says_which_attention_was_there(tmp_path):
    environment = run(tmp_path / "result.json", "--parts", "kernels")["environment"]
    assert environment["attention"]["TORCH_SDPA"] == "available"
    assert "not on cpu" in environment["attention"]["CUDNN_ATTN"]


def test_the_plan_is_told_and_nothing_runs(tmp_path, capsys):
    output = tmp_path / "result.json"
    main([*TINY, "--output", str(output), "--parts", "check,step,modes", "--dry-run", "--budget-seconds", "150"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[:-1]] == ["check", "step", "modes"]
    assert ["does not fit" in line for line in lines] == [False, False, True, False]
    assert not output.exists()


def test_what_the_check_found_wrong_is_not_used(tmp_path):
    arguments = parse([*TINY, "--output", str(tmp_path / "result.json"), "--parts", "check"])
    parts = Parts(arguments)
    assert parts.backends == ["TORCH_SDPA"]
    arguments.backends = ["TORCH_SDPA", "ANOTHER"]
    parts.result["checks"] = {"attention TORCH_SDPA 128": {"is_right": False}}
    assert parts.is_right("attention TORCH_SDPA 64")
    assert not parts.is_right("attention TORCH_SDPA 128")
    wrong = SimpleNamespace(**{name: f"fused {name}" for name in ("norm_modulate", "gate_add_", "norm_rotate", "swiglu", "scale_add_norm_")},
                            gate_add_norm_modulate_="fused")  # fmt: skip
    with patch("benchmarks.h3_speed.fused", lambda: wrong):
        assert parts.fused() is wrong
        parts.result["checks"] = {"kernel swiglu": {"is_right": False}}
        mixed = parts.fused()
    assert mixed.name == "fused but swiglu"
    assert mixed.swiglu == PLAIN.swiglu
    assert mixed.norm_rotate is wrong.norm_rotate


def test_a_part_that_takes_the_card_away_is_not_tried_again(tmp_path):
    output = tmp_path / "result.json"
    begun = run(output, "--parts", "kernels")
    began = ("--began", str(time.time() - 5), "--lost", "gaps")
    after = run(output, "--parts", "kernels,gaps,tables", *began)
    assert after["done"] == ["kernels", "tables"]
    assert after["rows"][: len(begun["rows"])] == begun["rows"]
    assert after["rows"][-1]["spent"] > 5


@pytest.mark.slow
def test_the_step_is_measured_beside_the_public_implementation(tmp_path):
    result = run(tmp_path / "result.json", "--parts", "check,step,smaller,modes", "--layers", "1", "--repeats", "1")
    assert result["errors"] == {}
    rows = cases(result)
    for shape in ("64x32x22", "32x32x22"):
        row = rows[f"step {shape}"]
        assert row["times_diffusers"] == pytest.approx(row["diffusers_seconds"] / row["median_seconds"])
    differences = [row["difference"]["relative_difference"] for name, row in rows.items() if name.startswith("mode ")]
    assert len(differences) == 4
    assert max(differences) < 1e-2


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_every_bar_is_measured_without_a_card(tmp_path):
    result = run(tmp_path / "result.json", "--parts", ",".join(DEFAULT))
    assert result["done"] == list(DEFAULT)
    assert result["errors"] == {}
    rows = cases(result)
    assert rows["mini plain TORCH_SDPA"]["times_diffusers"] > 0
    assert rows["decode compiled, 7 tiles at once"]["largest_level_difference"] <= 1
    assert rows["error against float32, plain TORCH_SDPA"]["relative_difference"] < 2e-2
    assert rows["recompile 512x512x39"]["graphs"] == 0
    assert rows["encode a clip"]["median_seconds"] > 0
    assert rows["encode float16, one pass, flat"]["relative_difference"] < 1e-2
