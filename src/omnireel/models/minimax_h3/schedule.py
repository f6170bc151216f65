"""The two noise schedules of a request, and how rows move along them.

Time runs from 0 (noise) to 1 (clean); sigma = 1 - t. Everything is float32 and made on the CPU, so that a schedule does not
depend on where the model runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

VISUAL_CONDITION_TIME = 0.999
"""Keyframes and picture references are held this close to clean; recordings are clean."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowSchedule:
    """sigmas: float32 [N], falling from 1 to 0; timesteps: float32 [N-1]. N points are N - 1 evaluations."""

    sigmas: Tensor
    timesteps: Tensor

    @classmethod
    def build(cls, num_points: int, shift: float) -> FlowSchedule:
        """A straight line from 1 to 0 bent by `shift`: s*b / (1 + (s-1)*b). Points that round to one are one."""
        return cls.of(torch.linspace(1.0, 0.0, num_points, dtype=torch.float32), shift)

    @classmethod
    def of(cls, base: Tensor, shift: float) -> FlowSchedule:
        """The same of any falling float32 points [N] that end at 0."""
        sigmas = torch.unique_consecutive(shift * base / (1 + (shift - 1) * base))
        return cls(sigmas=sigmas, timesteps=1.0 - sigmas[:-1])

    @property
    def num_steps(self) -> int:
        """Evaluations of the model."""
        return len(self.timesteps)

    def denoised(self, x: Tensor, velocity: Tensor, index: int) -> Tensor:
        """The clean rows that a velocity points to; both float32 and of one shape."""
        # The distance is taken from the timestep, not from sigmas: below 0.5 they can differ in the last bit, and the
        # model was told the timestep.
        return x + (1.0 - self.timesteps[index]) * velocity

    def step_(self, x: Tensor, velocity: Tensor, index: int) -> None:
        """Moves rows from point `index` to the next, in place: an Euler step, written as a blend with the clean rows."""
        clean = self.denoised(x, velocity, index)
        # A number on the CPU goes along with the operation; moved to the device by itself, it would wait for the step.
        ratio = self.sigmas[index + 1] / self.sigmas[index]
        torch.add(ratio * x, (1.0 - ratio) * clean, out=x)


def anchored(clean: Tensor, noise: Tensor) -> Tensor:
    """Latents of a visual condition as they are held through the loop; both float32 and of one shape."""
    # 1 - t is taken in float32: 0.00099998713 and not 0.001.
    time = torch.tensor(VISUAL_CONDITION_TIME, dtype=torch.float32)
    return time * clean + (1.0 - time) * noise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTimes:
    """The distinct times of one step and which of them each packed row has. timesteps: float32 [M]; indices: int64 [S]."""

    timesteps: Tensor
    indices: Tensor


def row_times(
    num_rows: int,
    *,
    video_time: Tensor,
    audio_time: Tensor,
    visual_condition_rows: Tensor,
    audio_condition_rows: Tensor,
    audio_rows: Tensor,
) -> RowTimes:
    """Times of all rows at one step: text and picture rows follow the video schedule, sound rows the audio schedule.

    Args:
        num_rows: S.
        video_time: float32 scalar; audio_time likewise.
        visual_condition_rows: where keyframes and picture references lie, int64.
        audio_condition_rows: where recordings lie.
        audio_rows: where the sound that is made lies.
    """
    kinds = torch.zeros(num_rows, dtype=torch.int64)
    for kind, rows in enumerate((audio_rows, visual_condition_rows, audio_condition_rows), start=1):
        kinds[rows] = kind
    present = torch.bincount(kinds, minlength=4) > 0
    of_kind = torch.stack(
        [video_time, audio_time, torch.clamp(video_time, min=VISUAL_CONDITION_TIME), torch.ones(())]
    ).to(torch.float32)
    # Four numbers are sorted, not all rows.
    timesteps, places = torch.unique(of_kind[present], sorted=True, return_inverse=True)
    place_of_kind = torch.zeros(4, dtype=torch.int64)
    place_of_kind[present] = places
    return RowTimes(timesteps=timesteps, indices=place_of_kind[kinds])
