"""The digest follows what the weights are, not how they are stored in files."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from omnireel.weights import read_index, weights_digest

TENSORS = {"a": torch.arange(10_000.0), "b": torch.ones(3)}


def digest_of(folder: Path, tensors: dict[str, torch.Tensor], config: str = "{}") -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    save_file(tensors, folder / "model.safetensors")
    return weights_digest([read_index(folder)])


def test_equal_weights_give_equal_digests_wherever_they_lie(tmp_path):
    assert digest_of(tmp_path / "1" / "x", TENSORS) == digest_of(tmp_path / "2" / "x", TENSORS)


def test_sharding_does_not_matter(tmp_path):
    folder = tmp_path / "s" / "x"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for key, tensor in TENSORS.items():
        save_file({key: tensor}, folder / f"{key}.safetensors")
    listed = {"weight_map": {key: f"{key}.safetensors" for key in TENSORS}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))
    assert weights_digest([read_index(folder)]) == digest_of(tmp_path / "1" / "x", TENSORS)


def test_a_changed_end_of_a_large_tensor_changes_the_digest(tmp_path):
    changed = TENSORS["a"].clone()
    changed[-1] += 1
    assert digest_of(tmp_path / "1" / "x", TENSORS) != digest_of(tmp_path / "2" / "x", TENSORS | {"a": changed})


def test_the_config_counts(tmp_path):
    assert digest_of(tmp_path / "1" / "x", TENSORS) != digest_of(tmp_path / "2" / "x", TENSORS, '{"eps": 1}')
