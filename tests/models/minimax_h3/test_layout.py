"""Where the parts of a checkpoint are looked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omnireel.errors import BadCheckpoint, BadSetting
from omnireel.models.minimax_h3.facts import FACTS
from omnireel.models.minimax_h3.layout import Layout, download_patterns, resolve_layout
from omnireel.models.protocol import Checkpoint


def layout_of(root: Path, index: Mapping[str, Any] | None = None, task_type: str = "auto") -> Layout:
    return resolve_layout(Checkpoint(name="x", facts=FACTS, path=root, index=index or {}, task_type=task_type))


def told(subfolder: object) -> list[object]:
    return ["diffusers", "X", {"pretrained_model_name_or_path": "some/where", "subfolder": subfolder, "variant": None}]


def folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def test_a_component_lies_in_the_folder_of_its_name(tmp_path):
    found = layout_of(folders(tmp_path, "transformer"), {"vae": told("vae"), "_class_name": "X"})
    assert found.shared["vae"] == tmp_path / "vae"
    assert dict(found.denoisers) == {"transformer": tmp_path / "transformer"}
    assert found.tasks == ("t2va", "fl2va")


def test_a_subfolder_that_the_index_tells_is_followed(tmp_path):
    root = folders(tmp_path, "dit/first", "dit/reference", "clock")
    index = {"transformer": told("dit/first"), "transformer_ref": told("dit/reference"), "scheduler": told("clock")}
    found = layout_of(root, index)
    assert dict(found.denoisers) == {"transformer": root / "dit/first", "transformer_ref": root / "dit/reference"}
    assert found.schedulers["video"] == root / "clock"
    assert found.tasks == ("t2va", "fl2va", "ref2va")


def test_the_folder_of_the_name_goes_before_the_index(tmp_path):
    found = layout_of(folders(tmp_path, "transformer", "other"), {"transformer": told("other")})
    assert found.denoisers["transformer"] == tmp_path / "transformer"


@pytest.mark.parametrize(
    "entry", [None, [], ["diffusers", "X"], ["diffusers", "X", "vae"], told(None), told(""), "vae"]
)
def test_an_entry_that_tells_nothing_is_passed_over(tmp_path, entry):
    assert layout_of(folders(tmp_path, "transformer"), {"vae": entry}).shared["vae"] == tmp_path / "vae"


@pytest.mark.parametrize("subfolder", ["../elsewhere", "/etc", "a/../../b", 5])
def test_a_subfolder_outside_is_refused(tmp_path, subfolder):
    with pytest.raises(BadCheckpoint, match=r"vae\.subfolder"):
        layout_of(tmp_path, {"vae": told(subfolder)})
    with pytest.raises(BadCheckpoint, match=r"vae\.subfolder"):
        download_patterns("auto", {"transformer": told("transformer"), "vae": told(subfolder)})


@pytest.mark.parametrize("task_type", ["combined", "ref2va"])
def test_a_task_that_insists_names_the_missing_denoiser(tmp_path, task_type):
    with pytest.raises(BadCheckpoint, match=r"transformer_ref: .*missing") as raised:
        layout_of(folders(tmp_path, "transformer"), task_type=task_type)
    assert "--task-type" in raised.value.hint


def test_a_denoiser_that_the_index_lists_must_be_there(tmp_path):
    index = {"transformer": told("transformer"), "transformer_ref": told("transformer_ref")}
    root = folders(tmp_path, "transformer")
    with pytest.raises(BadCheckpoint, match=r"transformer_ref: .*missing"):
        layout_of(root, index)
    assert layout_of(root, index, "t2va").tasks == ("t2va", "fl2va")


@pytest.mark.parametrize("task_type", ["t2v", "", "i2v", "auto "])
def test_an_unknown_task_is_refused_before_anything_is_fetched(tmp_path, task_type):
    for refused in (lambda: layout_of(tmp_path, task_type=task_type), lambda: download_patterns(task_type, {})):
        with pytest.raises(BadSetting, match="auto or combined or t2va or fl2va or ref2va"):
            refused()


def native(root: Path, **blocks: Mapping[str, Any]) -> Path:
    for name, block in blocks.items():
        folders(root, f"{name}/transformer")
        index = {"_class_name": "MiniMaxH3Pipeline", "_minimax_h3": block}
        (root / name / "model_index.json").write_text(json.dumps(index))
    return root


FIRST, REFERENCE = ("t2va", "fl2va"), ("ref2va",)


@pytest.mark.parametrize(
    ("named", "task_type", "partitions", "shared", "tasks"),
    [
        ("", "auto", ["FL2VA", "Ref2VA"], "FL2VA", FIRST + REFERENCE),
        ("", "Combined", ["FL2VA", "Ref2VA"], "FL2VA", FIRST + REFERENCE),
        ("", "t2va", ["FL2VA"], "FL2VA", FIRST),
        ("", "FL2VA", ["FL2VA"], "FL2VA", FIRST),
        ("", "Ref2VA", ["Ref2VA"], "Ref2VA", REFERENCE),
        ("FL2VA", "auto", ["FL2VA"], "FL2VA", FIRST),
        ("Ref2VA", "AUTO", ["Ref2VA"], "Ref2VA", REFERENCE),
        ("FL2VA", "ref2va", ["Ref2VA"], "Ref2VA", REFERENCE),
        ("Ref2VA", "t2va", ["FL2VA"], "FL2VA", FIRST),
        ("Ref2VA", "combined", ["FL2VA", "Ref2VA"], "FL2VA", FIRST + REFERENCE),
    ],
)
def test_the_start_up_task_picks_partitions(tmp_path, named, task_type, partitions, shared, tasks):
    root = native(tmp_path, FL2VA={"partition": "fl2va"}, Ref2VA={"partition": "ref2va"})
    found = layout_of(root / named, task_type=task_type)
    assert list(found.denoisers.values()) == [root / name / "transformer" for name in partitions]
    assert found.shared["vae"] == root / shared / "video_vae"
    assert {folder.parent for folder in found.shared.values()} == {root / shared}
    assert found.tasks == tasks
    for task in tasks:
        own = "ref2va" if task == "ref2va" else "fl2va"
        assert found.block_of(task)["partition"] == own


def test_a_service_that_finds_half_of_both_partitions_says_so(tmp_path):
    with pytest.raises(BadCheckpoint, match=r"Ref2VA: .*missing") as raised:
        layout_of(native(tmp_path, FL2VA={}))
    assert "--task-type" in raised.value.hint


@pytest.mark.parametrize("tasks", [[], ["ref2va"], "t2va", 5])
def test_a_partition_that_lists_none_of_its_tasks_is_refused(tmp_path, tasks):
    with pytest.raises(BadCheckpoint, match="key tasks"):
        layout_of(native(tmp_path, FL2VA={"tasks": tasks}), task_type="t2va")


def test_a_partition_may_list_fewer_tasks(tmp_path):
    assert layout_of(native(tmp_path, FL2VA={"tasks": ["t2va", "other"]}), task_type="fl2va").tasks == ("t2va",)


def test_the_published_sets_of_native_files():
    assert download_patterns("T2VA", {}) == download_patterns("fl2va", {}) == ("FL2VA/*",)
    assert download_patterns("ref2va", {}) == ("Ref2VA/*",)
    combined = ("FL2VA/*", "Ref2VA/model_index.json", "Ref2VA/transformer/*")
    assert download_patterns("auto", {}) == download_patterns("combined", {}) == combined


def test_an_index_of_no_components_means_partitions():
    assert download_patterns("t2va", {"_class_name": "MiniMaxH3Pipeline"}) == ("FL2VA/*",)
    assert "transformer/*" in download_patterns("t2va", {"_class_name": "MiniMaxH3ModularPipeline"})


def test_folders_are_fetched_where_the_index_tells_them():
    index = {"transformer": told("dit/first"), "transformer_ref": told("dit/reference"), "vae": told("picture")}
    found = set(download_patterns("ref2va", index))
    assert {"dit/reference/*", "picture/*", "audio_vae/*", "scheduler/*"} <= found
    assert not {"dit/first/*", "transformer/*", "vae/*"} & found


def test_auto_fetches_no_denoiser_that_the_index_lacks():
    found = download_patterns("auto", {"transformer": told("transformer")})
    assert "transformer/*" in found
    assert "transformer_ref/*" not in found
