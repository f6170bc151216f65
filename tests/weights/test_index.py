"""Headers are checked before data is read, and every fault names the file, the key, what was expected and found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from omnireel.errors import BadCheckpoint
from omnireel.weights import read_index
from omnireel.weights.index import read_header, read_json


def component(tmp_path: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    folder = tmp_path / "transformer"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file(tensors or {"a": torch.ones(2, 3), "b": torch.zeros(4)}, folder / "model.safetensors")
    return folder


def sharded(tmp_path: Path) -> Path:
    folder = tmp_path / "transformer"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"a": torch.ones(2)}, folder / "m-1.safetensors")
    save_file({"b": torch.ones(2)}, folder / "m-2.safetensors")
    listed = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    (folder / "m.safetensors.index.json").write_text(json.dumps(listed))
    return folder


def rewrite_header(file: Path, change) -> None:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def test_a_single_file_is_read(tmp_path):
    files = read_index(component(tmp_path))
    assert {key: entry.shape for key, entry in files.tensors.items()} == {"a": (2, 3), "b": (4,)}
    assert files.size_bytes == 40


def test_shards_are_read_through_their_index(tmp_path):
    files = read_index(sharded(tmp_path))
    assert [shard.name for shard in files.shards] == ["m-1.safetensors", "m-2.safetensors"]
    assert files.tensors["b"].file.name == "m-2.safetensors"


def test_a_folder_that_was_not_copied_to_the_end_says_so(tmp_path):
    folder = sharded(tmp_path)
    (folder / "m-2.safetensors").unlink()
    with pytest.raises(
        BadCheckpoint, match=r"m-2.safetensors: the file is missing, though .*found 1 of them"
    ) as raised:
        read_index(folder)
    assert "not downloaded or copied to the end" in raised.value.hint


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(BadCheckpoint, match="transformer: the component's folder is missing"):
        read_index(tmp_path / "transformer")


@pytest.mark.parametrize(("text", "problem"), [(None, "is missing"), ("{", "not valid JSON"), ("[]", "JSON object")])
def test_a_bad_config_is_named(tmp_path, text, problem):
    folder = component(tmp_path)
    (folder / "config.json").unlink()
    if text is not None:
        (folder / "config.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=f"transformer/config.json.*{problem}"):
        read_index(folder)


def test_a_cut_short_file_names_the_first_tensor_past_its_end(tmp_path):
    folder = component(tmp_path)
    file = folder / "model.safetensors"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(
        BadCheckpoint, match=f"model.safetensors: is cut short, key b, .*{size} bytes, found {size - 8}"
    ):
        read_index(folder)


@pytest.mark.parametrize("data", [b"", b"1234", b"\xff" * 64, (20).to_bytes(8, "little") + b"not json" * 4])
def test_what_is_no_safetensors_file_is_refused(tmp_path, data):
    folder = component(tmp_path)
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(BadCheckpoint, match=r"transformer/model\.safetensors"):
        read_index(folder)


def test_an_unknown_type_is_refused(tmp_path):
    folder = component(tmp_path)
    rewrite_header(folder / "model.safetensors", lambda header: header["a"].update(dtype="F7"))
    with pytest.raises(BadCheckpoint, match=r"unknown type, key a, expected one of F64, .*, found F7"):
        read_index(folder)


def test_a_shape_that_does_not_fit_its_place_is_refused(tmp_path):
    folder = component(tmp_path)
    rewrite_header(folder / "model.safetensors", lambda header: header["a"].update(shape=[3, 3]))
    with pytest.raises(BadCheckpoint, match="key a, expected 36 bytes, found 24 bytes"):
        read_index(folder)


@pytest.mark.parametrize(
    "change", [{"shape": [2.5, 3]}, {"shape": [True]}, {"shape": "ab"}, {"data_offsets": [0]}, {"dtype": 3}]
)
def test_a_header_with_other_things_than_counts_is_refused(tmp_path, change):
    folder = component(tmp_path)
    rewrite_header(folder / "model.safetensors", lambda header: header["a"].update(change))
    with pytest.raises(BadCheckpoint, match="has a broken header, key a"):
        read_index(folder)


def test_a_name_that_comes_twice_in_a_header_is_refused(tmp_path):
    folder = component(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"b":', b'"a":'))
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors: gives a name twice, key a"):
        read_index(folder)


def test_a_key_that_comes_twice_in_an_index_is_refused(tmp_path):
    folder = sharded(tmp_path)
    listed = '{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "a": "m-2.safetensors"}}'
    (folder / "m.safetensors.index.json").write_text(listed)
    with pytest.raises(BadCheckpoint, match=r"m\.safetensors\.index\.json: gives a name twice, key a"):
        read_index(folder)


def test_bytes_between_two_tensors_are_refused(tmp_path):
    folder = component(tmp_path)
    file = folder / "model.safetensors"
    rewrite_header(file, lambda header: header["b"].update(data_offsets=[28, 44]))
    file.write_bytes(file.read_bytes() + bytes(4))
    with pytest.raises(BadCheckpoint, match="bytes that belong to no tensor, key b"):
        read_index(folder)


def test_bytes_behind_the_last_tensor_are_refused(tmp_path):
    folder = component(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes() + bytes(4))
    with pytest.raises(BadCheckpoint, match="goes on behind its last tensor"):
        read_index(folder)


@pytest.mark.parametrize("shape", [(0,), (2, 0), ()])
def test_tensors_of_no_or_one_number_are_read(tmp_path, shape):
    files = read_index(component(tmp_path, {"a": torch.ones(shape), "b": torch.ones(2), "c": torch.ones(shape)}))
    assert files.tensors["a"].shape == files.tensors["c"].shape == shape


def test_nesting_without_end_is_a_broken_header(tmp_path):
    folder = component(tmp_path)
    text = b"[" * 100_000
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(BadCheckpoint, match="has a broken header"):
        read_index(folder)


def test_overlapping_tensors_are_refused(tmp_path):
    folder = component(tmp_path)
    rewrite_header(folder / "model.safetensors", lambda header: header["b"].update(data_offsets=[8, 24]))
    with pytest.raises(BadCheckpoint, match="overlap"):
        read_index(folder)


def test_a_negative_size_is_refused(tmp_path):
    folder = component(tmp_path)
    rewrite_header(folder / "model.safetensors", lambda header: header["a"].update(shape=[-2, -3]))
    with pytest.raises(BadCheckpoint, match="key a"):
        read_index(folder)


def test_a_pickle_is_refused_with_the_reason(tmp_path):
    folder = component(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BadCheckpoint, match=r"pytorch_model\.bin: is a pickle") as raised:
        read_index(folder)
    assert "safetensors" in raised.value.hint


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = component(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match="no weight files"):
        read_index(folder)


def test_several_files_need_an_index(tmp_path):
    folder = sharded(tmp_path)
    (folder / "m.safetensors.index.json").unlink()
    with pytest.raises(BadCheckpoint, match="no index"):
        read_index(folder)


def test_two_indexes_are_refused(tmp_path):
    folder = sharded(tmp_path)
    (folder / "n.safetensors.index.json").write_text("{}")
    with pytest.raises(BadCheckpoint, match="more than one index"):
        read_index(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = sharded(tmp_path)
    (folder / "m-2.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"transformer/m-2.safetensors: the file is missing"):
        read_index(folder)


@pytest.mark.parametrize("listed", [{"a": "m-1.safetensors", "b": "m-1.safetensors"}, {"a": "m-1.safetensors"}])
def test_an_index_that_disagrees_with_its_shards_is_refused(tmp_path, listed):
    folder = sharded(tmp_path)
    listed = dict.fromkeys(listed, "m-1.safetensors") | ({"x": "m-2.safetensors"} if "b" not in listed else {})
    (folder / "m.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    with pytest.raises(BadCheckpoint, match="index"):
        read_index(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    folder = sharded(tmp_path)
    save_file({"b": torch.ones(2), "a": torch.ones(2)}, folder / "m-2.safetensors")
    with pytest.raises(
        BadCheckpoint,
        match=r"m-2.safetensors: holds a tensor that another file holds too, key a, found also in m-1.safetensors",
    ):
        read_index(folder)


def test_an_index_cannot_point_outside_its_folder(tmp_path):
    folder = sharded(tmp_path)
    listed = {"weight_map": {"a": "../secret.safetensors"}}
    (folder / "m.safetensors.index.json").write_text(json.dumps(listed))
    with pytest.raises(BadCheckpoint, match="outside its folder"):
        read_index(folder)


def test_entries_come_in_the_order_of_the_file(tmp_path):
    entries = read_header(component(tmp_path) / "model.safetensors")
    assert [entry.offset for entry in entries] == sorted(entry.offset for entry in entries)


def test_json_that_is_a_folder_is_refused(tmp_path):
    with pytest.raises(BadCheckpoint, match="cannot be read"):
        read_json(tmp_path)
