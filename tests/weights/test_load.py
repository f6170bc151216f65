"""Loading is strict, takes tensors from the memory map and leaves nothing on the meta device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from omnireel.errors import BadCheckpoint
from omnireel.weights import build_empty, load_component, read_index

CPU = torch.device("cpu")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("filter", torch.arange(3.0), persistent=False)


def weights() -> dict[str, torch.Tensor]:
    return {"linear.weight": torch.randn(2, 3), "linear.bias": torch.randn(2), "steps": torch.tensor([7, 8])}


def folder_of(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder = tmp_path / "part"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file(tensors, folder / "model.safetensors")
    return folder


def loaded(tmp_path: Path, tensors: dict[str, torch.Tensor], **options) -> nn.Module:
    module = build_empty(Small)
    load_component(module, read_index(folder_of(tmp_path, tensors)), device=CPU, **options)
    return module


def test_every_tensor_arrives_and_takes_no_gradient(tmp_path):
    tensors = weights()
    module = loaded(tmp_path, tensors)
    assert all(torch.equal(value, tensors[name]) for name, value in module.state_dict().items())
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_a_buffer_that_no_file_holds_keeps_what_the_class_computed(tmp_path):
    assert torch.equal(loaded(tmp_path, weights()).filter, torch.arange(3.0))


def test_weights_without_a_cast_are_the_memory_map(tmp_path):
    folder = folder_of(tmp_path, weights())
    module = build_empty(Small)
    load_component(module, read_index(folder), device=CPU)
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "model.safetensors" in line]
    places = [tuple(int(end, 16) for end in line[0].split("-")) for line in mapped if str(folder) in line[-1]]
    assert any(first <= module.linear.weight.data_ptr() < last for first, last in places)


def test_the_type_rule_casts_floats_and_leaves_integers(tmp_path):
    module = loaded(tmp_path, weights(), dtype_of=lambda name, stored: torch.bfloat16)
    assert module.linear.weight.dtype == torch.bfloat16
    assert module.steps.dtype == torch.int64


def test_keys_are_renamed_and_known_ones_skipped(tmp_path):
    tensors = {f"model.{name}": value for name, value in weights().items()} | {"lm_head.weight": torch.ones(9)}
    module = loaded(tmp_path, tensors, rename=lambda key: key.removeprefix("model.") if "lm_head" not in key else None)
    assert torch.equal(module.linear.bias, tensors["model.linear.bias"])


def test_a_missing_tensor_is_named(tmp_path):
    tensors = weights()
    del tensors["linear.bias"]
    with pytest.raises(BadCheckpoint, match=r"part/model.safetensors: lacks 1 tensor, key linear.bias"):
        loaded(tmp_path, tensors)


def test_an_unexpected_tensor_is_named(tmp_path):
    with pytest.raises(BadCheckpoint, match=r"has 1 tensor that the model does not know, key extra"):
        loaded(tmp_path, weights() | {"extra": torch.ones(1)})


def test_weights_of_another_model_are_called_so(tmp_path):
    with pytest.raises(BadCheckpoint, match="lacks 3 tensors; 2 others are not expected") as raised:
        loaded(tmp_path, {"x": torch.ones(1), "y": torch.ones(1)})
    assert "another model" in raised.value.hint


def test_a_misshaped_tensor_names_both_shapes(tmp_path):
    with pytest.raises(BadCheckpoint, match=r"key linear.weight, expected \[2, 3\], found \[3, 2\]"):
        loaded(tmp_path, weights() | {"linear.weight": torch.randn(3, 2)})


def test_an_integer_weight_is_refused(tmp_path):
    with pytest.raises(BadCheckpoint, match=r"another type, key linear.bias, expected a floating-point type, found I64"):
        loaded(tmp_path, weights() | {"linear.bias": torch.ones(2, dtype=torch.int64)})


def test_two_keys_for_one_weight_are_refused(tmp_path):
    with pytest.raises(BadCheckpoint, match="gives a weight twice"):
        loaded(tmp_path, weights() | {"old.steps": torch.tensor([1, 2])}, rename=lambda key: key.removeprefix("old."))


def test_nothing_is_read_when_a_header_is_wrong(tmp_path, monkeypatch):
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("data was read")

    monkeypatch.setattr("omnireel.weights.load.safe_open", opened)
    with pytest.raises(BadCheckpoint):
        loaded(tmp_path, weights() | {"linear.weight": torch.randn(3, 2)})


def test_a_meta_buffer_that_no_file_fills_is_refused(tmp_path):
    with torch.device("meta"):
        module = Small()
    with pytest.raises(BadCheckpoint, match="leaves a buffer without a value, key filter"):
        load_component(module, read_index(folder_of(tmp_path, weights())), device=CPU)


def test_an_empty_build_takes_no_memory_for_parameters():
    module = build_empty(lambda: nn.Linear(100, 100))
    assert module.weight.is_meta
