"""Our schedules and steps against the public ones, to the last bit."""

from __future__ import annotations

import pytest
import torch
from diffusers import MiniMaxH3Scheduler
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3SetTimestepsStep
from tests.parity.tolerances import assert_close

from omnireel.models.minimax_h3.schedule import FlowSchedule, row_times


def theirs(points: int, shift: float) -> MiniMaxH3Scheduler:
    scheduler = MiniMaxH3Scheduler(shift=shift)
    scheduler.set_timesteps(points)
    return scheduler


@pytest.mark.parametrize("shift", [12.0, 3.0, 6.0, 1.0])
@pytest.mark.parametrize("points", [2, 3, 8, 9, 20, 50, 200])
def test_sigmas_and_timesteps(points, shift):
    ours, other = FlowSchedule.build(points, shift), theirs(points, shift)
    assert_close("schedule", ours.sigmas, other.sigmas)
    assert_close("schedule", ours.timesteps, other.timesteps)


def test_points_that_collide_are_one():
    ours, other = FlowSchedule.build(3000, 1e6), theirs(3000, 1e6)
    assert ours.num_steps < 2999
    assert_close("schedule", ours.sigmas, other.sigmas)


@pytest.mark.parametrize("shift", [12.0, 3.0])
def test_every_step_of_a_loop(shift):
    ours, other = FlowSchedule.build(20, shift), theirs(20, shift)
    x = torch.randn(50, 6)
    mine = x.clone()
    for index, time in enumerate(other.timesteps):
        velocity = torch.randn(50, 6)
        x = other.step(velocity, time, x, return_dict=False)[0]
        ours.step_(mine, velocity, index)
        assert_close("schedule", mine, x)


@pytest.mark.parametrize("conditions", [(0, 0), (4, 0), (0, 6), (4, 6)])
def test_times_of_rows(conditions):
    num_text, (num_visual, num_heard), num_audio, num_video = 5, conditions, 6, 8
    first = num_text + num_visual + num_heard
    visual = torch.arange(num_text, num_text + num_visual)
    heard = torch.arange(num_text + num_visual, first)
    audio = torch.arange(first, first + num_audio)
    video = torch.arange(first + num_audio, first + num_audio + num_video)
    total = first + num_audio + num_video
    video_schedule, audio_schedule = theirs(9, 12.0), theirs(9, 3.0)
    for index in range(8):
        ours = row_times(
            total,
            video_time=video_schedule.timesteps[index],
            audio_time=audio_schedule.timesteps[index],
            visual_condition_rows=visual,
            audio_condition_rows=heard,
            audio_rows=audio,
        )
        timesteps, indices = MiniMaxH3SetTimestepsStep.build_row_timesteps(
            video_indices=torch.cat([visual, video]),
            audio_indices=torch.cat([heard, audio]),
            num_condition_video_rows=num_visual,
            num_condition_audio_rows=num_heard,
            num_text_tokens=num_text,
            video_timestep=float(video_schedule.timesteps[index]),
            audio_timestep=float(audio_schedule.timesteps[index]),
            condition_video_timestep=max(float(video_schedule.timesteps[index]), 0.999),
            condition_audio_timestep=1.0,
        )
        assert_close("schedule", ours.timesteps, timesteps)
        assert_close("schedule", ours.indices, indices)
