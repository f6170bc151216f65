"""The toy's pipeline: deterministic, quick, and able to fail where a test wants it to."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from omnireel.errors import InvalidRequest
from omnireel.models.protocol import BuildContext, Conditioning, DenoiseState
from omnireel.parallel.ulysses import gather_rows, shares
from omnireel.request import MediaOutput

if TYPE_CHECKING:
    from omnireel.parallel import Ranks
    from omnireel.request import FramesU8, WaveF32, Workload

SAMPLE_RATE_HZ = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyConditioning(Conditioning):
    """A number from the prompt."""

    key: int


@dataclass(slots=True, kw_only=True)
class ToyState(DenoiseState):
    """level: float64 [3], what each step moves on; everything that is made follows from it."""

    level: np.ndarray


class ToyPipeline:
    """See `Pipeline`."""

    weights_digest = ""

    @classmethod
    def build(cls, context: BuildContext) -> ToyPipeline:
        """Nothing to load."""
        return cls(new_frames=context.new_frames, ranks=context.ranks)

    def __init__(
        self, *, new_frames: Callable[[Sequence[int]], FramesU8] | None = None, ranks: Ranks | None = None
    ) -> None:
        self._ranks = ranks
        self._new_frames: Callable[[Sequence[int]], FramesU8] = new_frames or _plain_frames

    def encode(self, workload: Workload) -> ToyConditioning:
        """The prompt's hash."""
        self._fail_on(workload, "encode")
        if self._fails(workload, "client"):
            raise InvalidRequest("prompt", "...", "the toy was told to refuse it")
        return ToyConditioning(key=int.from_bytes(hashlib.sha256(workload.prompt.encode()).digest()[:4], "little"))

    def prepare(self, workload: Workload, conditioning: ToyConditioning) -> ToyState:
        """Draws from the seed and the prompt."""
        self._fail_on(workload, "prepare")
        rng = np.random.default_rng([conditioning.key, workload.seed % 2**64])
        return ToyState(workload=workload, num_steps=workload.num_steps, level=rng.random(3))

    def step(self, state: ToyState) -> ToyState:
        """Moves the level on."""
        time.sleep(state.workload.settings["step_seconds"])
        state.progress = 1 - state.steps_done / state.num_steps
        state.steps_done += 1
        self._fail_on(state.workload, f"step:{state.steps_done}")
        if self._fails(state.workload, "oom"):
            raise MemoryError
        state.level = _moved(state.level) if self._ranks is None else _moved_together(self._ranks, state.level)
        return state

    def step_batch(self, states: Sequence[ToyState]) -> Sequence[ToyState]:
        """The same for several, in the time of the slowest; all or none."""
        time.sleep(max(state.workload.settings["step_seconds"] for state in states))
        for state in states:
            self._fail_on(state.workload, f"step:{state.steps_done + 1}")
            if self._fails(state.workload, "oom"):
                raise MemoryError
        levels = _moved(np.stack([state.level for state in states]))
        for state, level in zip(states, levels, strict=True):
            state.progress = 1 - state.steps_done / state.num_steps
            state.steps_done += 1
            state.level = level
        return states

    def preview(self, state: ToyState) -> FramesU8 | None:
        """The first frame as it stands."""
        return _frame(state, 0)

    def decode(self, state: ToyState) -> MediaOutput:
        """A gradient that moves and a tone that lasts as long."""
        self._fail_on(state.workload, "decode")
        if state.workload.output_type == "latent":
            return MediaOutput(latents={"level": state.level.copy()})
        work = state.workload
        frames = self._new_frames((work.num_frames, work.height, work.width, 3))
        for index in range(work.num_frames):
            if state.pause is not None:
                state.pause()
            frames[index] = _frame(state, index)
        return MediaOutput(frames=frames, fps=state.workload.fps, wave=_tone(state), sample_rate_hz=SAMPLE_RATE_HZ)

    def _fails(self, workload: Workload, stage: str) -> bool:
        return workload.settings["fail"] in (stage, f"{stage}@{0 if self._ranks is None else self._ranks.rank}")

    def _fail_on(self, workload: Workload, stage: str) -> None:
        if self._fails(workload, stage):
            raise RuntimeError(f"the toy was told to fail in {stage}")


def _moved_together(ranks: Ranks, level: np.ndarray) -> np.ndarray:
    """The numbers shared out as rows are, each rank's moved on by itself."""
    counts = shares(len(level), ranks.size)
    start = sum(counts[: ranks.rank])
    own = _moved(level[start : start + counts[ranks.rank]])
    return np.asarray(gather_rows(ranks, torch.from_numpy(own)[None, :, None], counts).reshape(-1).numpy())


def _plain_frames(shape: Sequence[int]) -> FramesU8:
    return np.zeros(tuple(shape), np.uint8)


def _moved(level: np.ndarray) -> np.ndarray:
    return np.asarray((3.9 * level * (1 - level)).clip(0, 1))


def _frame(state: ToyState, index: int) -> FramesU8:
    height, width = state.workload.height, state.workload.width
    ramp = (np.arange(width)[None, :, None] + 2 * index + np.arange(height)[:, None, None]) / (width + height)
    frame: FramesU8 = np.rint(255 * np.mod(ramp + state.level, 1.0)).astype(np.uint8)
    return frame


def _tone(state: ToyState) -> WaveF32:
    samples = round(state.workload.num_frames / state.workload.fps * SAMPLE_RATE_HZ)
    hz = 220 + 440 * state.level[0]
    wave = 0.3 * np.sin(2 * np.pi * hz * np.arange(samples) / SAMPLE_RATE_HZ)
    return np.stack([wave, wave]).astype(np.float32)
