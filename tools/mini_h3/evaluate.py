"""Scores mini-h3, or a checkpoint like it, on captions that training did not see, with the judge that learned nothing.

    python tools/mini_h3/evaluate.py --count 256 --output SCORES.json

Every clip is made by the engine, as a user's would be. Each task has its own requests: text alone; a caption with the first
frame; a picture that gives colour and shape with a recording that gives the pitch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from omnireel.api import Omni
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaInput, MediaKind
from tools.mini_h3 import data, judge

TASKS = ("t2va", "fl2va", "ref2va")
BARS: dict[str, dict[str, float]] = {
    "t2va": {"colour": 0.95, "shape": 0.85, "direction": 0.90, "pitch": 0.90, "pan": 0.90, "onset": 0.85},
    "fl2va": {"first_frame_psnr_db": 28.0},
    "ref2va": {"colour": 0.85, "shape": 0.85, "pitch": 0.85},
}
FIRST_SCENE = 3 * 10**9
"""Seeds of scenes from here on are used by no pool of the training."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A request and what it asks for. given: uint8 [H,W,3], the first frame that the clip is to begin with."""

    request: GenerationRequest
    scene: data.Scene
    given: npt.NDArray[np.uint8] | None = None


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini-h3")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--count", type=int, default=256, help="clips of each task")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", type=Path, help="file for the scores as JSON")
    arguments = parser.parse_args()
    told: dict[str, Any] = {
        "command": "python " + " ".join(["tools/mini_h3/evaluate.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": torch.cuda.get_device_name() if arguments.device.startswith("cuda") else platform.processor(),
        "torch": torch.__version__, "dtype": arguments.dtype, "steps": arguments.steps, "tasks": {},
    }  # fmt: skip
    with Omni(arguments.model, device=arguments.device, dtype=arguments.dtype) as omni:
        for task in arguments.tasks:
            told["tasks"][task] = score(omni, list(cases(task, arguments.count, steps=arguments.steps)), BARS[task])
            print(task, json.dumps(told["tasks"][task]), flush=True)
            if arguments.output:
                arguments.output.write_text(json.dumps(told, indent=2) + "\n")


def cases(task: str, count: int, *, steps: int = 20) -> Iterator[Case]:
    """The first `count` requests of a task, the same each time."""
    scenes = (data.draw_scene(FIRST_SCENE + k) for k in itertools.count())
    held_out = itertools.islice((scene for scene in scenes if scene.is_held_out), count)
    make = {"t2va": _from_text, "fl2va": _from_first_frame, "ref2va": _from_references}[task]
    for k, drawn in enumerate(held_out):
        prompt, media, scene, given = make(drawn)
        sampling = DiffusionSamplingParams(seed=k, num_frames=data.NUM_FRAMES, num_inference_steps=steps, task=task)
        yield Case(request=GenerationRequest(prompt=prompt, media=media, sampling=sampling), scene=scene, given=given)


_Made = tuple[str, tuple[MediaInput, ...], data.Scene, npt.NDArray[np.uint8] | None]


def _from_text(scene: data.Scene) -> _Made:
    return data.caption(scene), (), scene, None


def _from_first_frame(scene: data.Scene) -> _Made:
    first = data.render(scene)[:1]
    return data.caption(scene), (_picture(first, "first_frame"),), scene, first[0]


def _from_references(scene: data.Scene) -> _Made:
    """The picture shows the shape somewhere else, larger and on another ground; the recording has another colour's pitch."""
    rng = np.random.default_rng(scene.seed + 2)
    heard = str(rng.choice([name for name in data.COLOURS if name != scene.colour]))
    radius = float(rng.uniform(16, 36))
    shown = replace(
        scene, motion="right", speed=0.0, num_frames=1, radius=radius, background=str(rng.choice(data.BACKGROUNDS)),
        x=float(rng.uniform(radius + 8, data.WIDTH - radius - 8)), y=float(rng.uniform(radius + 8, data.HEIGHT - radius - 8)),
    )  # fmt: skip
    seconds = np.arange(4 * data.SAMPLE_RATE_HZ) / data.SAMPLE_RATE_HZ
    tone = data.TONE_LEVEL * data.timbre(str(rng.choice(data.SHAPES)), data.PITCHES_HZ[heard], seconds)
    wave = np.stack([tone, tone]).astype(np.float32) * np.float32(np.sqrt(0.5))
    recording = MediaInput(kind=MediaKind.AUDIO, role="reference", wave=wave, sample_rate_hz=data.SAMPLE_RATE_HZ)
    prompt = data.reference_caption(scene, rng, has_recording=True)
    return prompt, (_picture(data.render(shown), "reference"), recording), replace(scene, pitch=heard), None


def _picture(frames: npt.NDArray[np.uint8], role: str) -> MediaInput:
    return MediaInput(kind=MediaKind.IMAGE, role=role, frames=frames)


def score(omni: Any, asked: Sequence[Case], bars: dict[str, float]) -> dict[str, Any]:
    """Makes all clips with an `Omni`; for each measure the share that is right, of how many, and its bar where there is one."""
    verdicts, psnrs = [], []
    for case in asked:
        (result,) = omni.generate([case.request])
        assert result.frames is not None
        assert result.audio is not None
        assert result.sampling_rate
        verdicts.append(judge.judge(case.scene, result.frames, result.audio, result.sampling_rate))
        if case.given is not None:
            psnrs.append(psnr_db(result.frames[0], case.given))
    told: dict[str, Any] = {"clips": len(asked)}
    for measure in (field.name for field in fields(judge.Verdict)):
        found = [getattr(verdict, measure) for verdict in verdicts]
        counted = [value for value in found if value is not None]
        if counted:
            told[measure] = {"right": round(sum(counted) / len(counted), 4), "of": len(counted)}
    if psnrs:
        told["first_frame_psnr_db"] = {
            "median": round(float(np.median(psnrs)), 2), "least": round(min(psnrs), 2), "of": len(psnrs),
        }  # fmt: skip
    for measure, bar in bars.items():
        if measure in told:
            told[measure]["bar"] = bar
    return told


def psnr_db(made: npt.NDArray[np.uint8], wanted: npt.NDArray[np.uint8]) -> float:
    """Peak signal to noise of one uint8 picture against another."""
    error = ((made.astype(np.float64) - wanted.astype(np.float64)) ** 2).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


if __name__ == "__main__":
    main()
