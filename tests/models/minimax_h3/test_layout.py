"""Where the parts of a checkpoint are looked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omnireel.errors import BadCheckpoint, BadSetting
from omnireel.models.minimax_h3.facts import FACTS
from omnireel.models.minimax_h3.layout import Layout, resolve_layout
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
    assert layout_of(tmp_path, {"vae": entry}).shared["vae"] == tmp_path / "vae"


@pytest.mark.parametrize("subfolder", ["../elsewhere", "/etc", "a/../../b", 5])
def test_a_subfolder_outside_is_refused(tmp_path, subfolder):
    with pytest.raises(BadCheckpoint, match=r"vae\.subfolder"):
        layout_of(tmp_path, {"vae": told(subfolder)})


def test_a_task_that_insists_names_the_missing_denoiser(tmp_path):
    found = layout_of(folders(tmp_path, "transformer"), task_type="combined")
    assert tuple(found.denoisers) == ("transformer", "transformer_ref")


def test_an_unknown_task_is_refused(tmp_path):
    with pytest.raises(BadSetting, match="t2va"):
        layout_of(tmp_path, task_type="t2v")
