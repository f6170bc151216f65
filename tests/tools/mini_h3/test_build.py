"""The shipped miniature is what its builder writes of the weights in it, and makes clips as captions say."""

import filecmp
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import omnireel.models.minimax_h3.facts
from omnireel.api import Omni

pytestmark = pytest.mark.slow

SHIPPED = Path(omnireel.models.minimax_h3.facts.__file__).parent / "mini"
CLIPS = 16
LEAST_RIGHT = {"colour": 0.5, "pitch": 0.85, "pan": 0.85}
"""Below what more captions gave (tools/mini_h3/runs) by what so few clips vary. Shape and motion are not learned yet."""


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def shipped(folder: str, name: str = "diffusion_pytorch_model.safetensors") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(SHIPPED / folder / name)
    return found


def statistics() -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for medium, folder in (("video", "vae"), ("audio", "audio_vae")):
        config = json.loads((SHIPPED / folder / "config.json").read_text())
        found |= {f"{medium}_{kind}": torch.tensor(config[f"latents_{kind}"]) for kind in ("mean", "std")}
    return found


def test_the_builder_writes_the_shipped_files_byte_by_byte(tmp_path):
    from tools.mini_h3.architecture import CONDITION_LAYER
    from tools.mini_h3.build import build

    whole = shipped("text_encoder", "model.safetensors")
    layers = {name.removeprefix("model.language_model."): value for name, value in whole.items()}
    text = {
        name: value for name, value in layers.items()
        if name.startswith(("embed_tokens", *(f"layers.{k}." for k in range(CONDITION_LAYER))))
    }  # fmt: skip
    vision = {
        name.removeprefix("model.visual."): value for name, value in whole.items() if name.startswith("model.visual.")
    }
    build(
        tmp_path / "mini", video=shipped("vae"), audio=shipped("audio_vae"), clip=shipped("transformer"),
        reference=shipped("transformer_ref"), text={"text": text, "vision": vision, **statistics()},
    )  # fmt: skip
    names = files_of(SHIPPED)
    assert files_of(tmp_path / "mini") == names
    _, differing, unread = filecmp.cmpfiles(SHIPPED, tmp_path / "mini", names, shallow=False)
    assert (differing, unread) == ([], [])


def test_the_package_stays_small():
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 25 * 2**20


@pytest.mark.timeout(600)
def test_clips_of_captions_that_training_did_not_see_are_as_they_say():
    from tools.mini_h3.evaluate import cases, score

    with Omni("mini-h3", dtype="float32") as omni:
        told = score(omni, list(cases("t2va", CLIPS)), {})
    wrong = {name: told[name] for name, least in LEAST_RIGHT.items() if told[name]["right"] < least}
    assert not wrong
