"""The three toys. Letters: N words, T frames, H height, W width."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from omnireel.models.protocol import BuildContext, Conditioning, DenoiseState
from omnireel.request import MediaOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnireel.request import FramesU8, Workload

SAMPLE_RATE_HZ = 32_000
Array = npt.NDArray[Any]


@dataclass(slots=True, kw_only=True)
class ToyStageState(DenoiseState):
    """taken: rows of the stage before, one a step; made: rows of this one, called `name`, of which `handed` were handed on."""

    name: str
    handed: int = 0
    taken: list[Array] = field(default_factory=list)
    made: list[Array] = field(default_factory=list)


class ToyStage(ABC):
    """What the three have in common: each step makes a row out of the row before it and of a row that was handed over.

    name: of the array that is handed on; input_name: of the one that is handed over, "" for none.
    """

    name = ""
    input_name = ""
    weights_digest = ""

    @classmethod
    def build(cls, context: BuildContext) -> ToyStage:
        """Nothing to load."""
        return cls()

    def encode(self, workload: Workload) -> Conditioning:
        """Nothing to read."""
        return Conditioning()

    def prepare(self, workload: Workload, conditioning: Conditioning) -> ToyStageState:
        """One step for each row that was handed over, or for each word."""
        steps = 0 if self.input_name else workload.num_steps
        state = ToyStageState(workload=workload, num_steps=steps, name=self.name)
        self.take(state, workload.tensors)
        return state

    def take(self, state: ToyStageState, tensors: Mapping[str, Array]) -> None:
        """Takes rows that were handed over; each is one step more."""
        if self.input_name in tensors:
            state.taken += list(tensors[self.input_name])
            state.num_steps = len(state.taken)

    def step(self, state: ToyStageState) -> ToyStageState:
        """One row."""
        settings = state.workload.settings
        time.sleep(settings["step_seconds"])
        if settings["fail"] == state.steps_done + 1:
            raise RuntimeError(f"the toy was told to fail in step {state.steps_done + 1}")
        state.progress = 1 - state.steps_done / state.num_steps
        state.made.append(self.row(state, state.steps_done))
        state.steps_done += 1
        return state

    @abstractmethod
    def row(self, state: ToyStageState, index: int) -> Array:
        """The row that a step makes."""

    def preview(self, state: ToyStageState) -> FramesU8 | None:
        """There is nothing to see."""
        return None

    def decode(self, state: ToyStageState) -> MediaOutput:
        """All rows, as one array."""
        return MediaOutput(latents={self.name: np.stack(state.made)})


class ToyWords(ToyStage):
    """Numbers in [0, 1) out of the prompt, the seed and their place: float64 [N]."""

    name = "words"

    def row(self, state: ToyStageState, index: int) -> Array:
        """One number."""
        work = state.workload
        digest = hashlib.sha256(f"{work.prompt} {work.seed} {index}".encode()).digest()
        return np.asarray(int.from_bytes(digest[:4], "little") / 2**32)


class ToyLevels(ToyStage):
    """Colours that follow each other: float64 [N,3]."""

    name, input_name = "levels", "words"

    def row(self, state: ToyStageState, index: int) -> Array:
        """The colour before, moved on by the word."""
        before = state.made[-1] if state.made else np.full(3, 0.5)
        level: Array = np.mod(0.5 * before + state.taken[index] * np.array([1.0, 2.0, 3.0]), 1.0)
        return level


class ToyScene(ToyStage):
    """Frames in these colours, one after the other, and a tone."""

    input_name = "levels"

    def row(self, state: ToyStageState, index: int) -> Array:
        """The colour as a screen shows it."""
        shown: Array = np.rint(255 * state.taken[index]).astype(np.uint8)
        return shown

    def decode(self, state: ToyStageState) -> MediaOutput:
        """uint8 [T,H,W,3], and a stereo tone that lasts as long."""
        work = state.workload
        if work.output_type == "latent":
            return MediaOutput(latents={"levels": np.stack(state.made).astype(np.float32)})
        frames = np.empty((work.num_frames, work.height, work.width, 3), np.uint8)
        for index in range(work.num_frames):
            frames[index] = state.made[index % len(state.made)]
        samples = round(work.num_frames / work.fps * SAMPLE_RATE_HZ)
        tone = 0.3 * np.sin(2 * np.pi * (220 + int(state.made[0][0])) * np.arange(samples) / SAMPLE_RATE_HZ)
        wave = np.stack([tone, tone]).astype(np.float32)
        return MediaOutput(frames=frames, fps=work.fps, wave=wave, sample_rate_hz=SAMPLE_RATE_HZ)
