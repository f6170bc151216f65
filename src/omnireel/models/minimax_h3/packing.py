"""The packed sequence: which row is what, and where it stands in time, height and width.

Order of rows: text, conditions in the order they were given, target sound, target picture. Positions are float64 and
follow the reference to the last bit, sums included. Letters: S packed rows, L text rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from omnireel.attention import AttentionMetadata, VideoTokenLayout

VIDEO_TAG, TEXT_TAG, AUDIO_TAG = 0, 1, 2
AUDIO_CHANNELS = 2

_UNITS_PER_FRAME = 5.0 / 3.0
"""Time units of a 24 fps frame; a sound latent at 40 Hz is one unit, so both media share a clock."""
_FRAMES_PER_LATENT = (1, 4, 4, 4, 4)
_SPATIAL_UNITS = 32
"""A square picture spans this many units on both axes."""

Grid: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyframe:
    """A picture that is the clip's "first" or "last" frame, of the clip's own size."""

    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureReference:
    """A picture of its own size in latents."""

    latent_height: int
    latent_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundReference:
    """A recording; latents a channel."""

    num_latents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipReference:
    """A clip of its own size in latents, with its sound (latents a channel; 0 for none)."""

    latent_frames: int
    latent_height: int
    latent_width: int
    sound_latents: int


Condition: TypeAlias = Keyframe | PictureReference | SoundReference | ClipReference


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is made, in latents: frames, height and width of the picture, and sound latents a channel."""

    latent_frames: int
    latent_height: int
    latent_width: int
    sound_latents: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedLayout:
    """Where everything is. All tensors are on the CPU.

    position_ids: float64 [S,3] in (time, height, width). token_tags: int64 [S]. The indices say where picture, sound and
    text rows lie; conditions come before the target in each, and their numbers are the two `num_condition_` fields.
    video_row_start and grid (frames, height, width in patches) place the target picture.
    """

    position_ids: Tensor
    token_tags: Tensor
    video_indices: Tensor
    audio_indices: Tensor
    text_indices: Tensor
    num_condition_video_rows: int
    num_condition_audio_rows: int
    video_row_start: int
    grid: tuple[int, int, int]

    @property
    def num_rows(self) -> int:
        """S."""
        return len(self.token_tags)

    def told(self, step: int, progress: float) -> AttentionMetadata:
        """What an attention backend may know of a step: one document, and the target picture at its end."""
        video = VideoTokenLayout(prefix_len=self.video_row_start, latent_grid=self.grid)
        return AttentionMetadata(cu_seqlens=(0, self.num_rows), video=video, step=step, progress=progress)


def pack(
    text_tags: Tensor, target: Target, *, patch_size: tuple[int, int, int], conditions: Sequence[Condition] = ()
) -> PackedLayout:
    """The layout of one request.

    Args:
        text_tags: int64 [L], TEXT_TAG, or VIDEO_TAG for rows that stand for a picture.
        target: what is made.
        patch_size: (time, height, width) of a patch.
        conditions: in packed order.
    """
    builder = _Builder(text_tags, patch_size)
    target_grid, target_widths = builder.frame_grid(target.latent_height, target.latent_width)
    for condition in conditions:
        builder.add_condition(condition, target, target_grid, target_widths)
    builder.num_conditions = (sum(map(len, builder.video)), sum(map(len, builder.audio)))
    builder.add_sound(target.sound_latents, builder.clock, target_widths)
    video_row_start = builder.num_rows
    builder.add_frames(_frame_times(target.latent_frames, builder.clock), target_grid)
    _, patch_height, patch_width = patch_size
    grid = (target.latent_frames, target.latent_height // patch_height, target.latent_width // patch_width)
    return builder.layout(video_row_start, grid)


class _Builder:
    """Rows are appended block by block; `clock` is the time at which the next block begins."""

    def __init__(self, text_tags: Tensor, patch_size: tuple[int, int, int]) -> None:
        self._text_tags = text_tags.to(torch.int64)
        self._patch = patch_size
        text = np.zeros((len(text_tags), 3))
        text[:, 0] = np.arange(len(text_tags))
        self._positions = [text]
        self.num_rows = len(text_tags)
        self.clock = float(len(text_tags))
        self.video: list[range] = []
        self.audio: list[range] = []
        self.num_conditions = (0, 0)

    def frame_grid(self, latent_height: int, latent_width: int) -> tuple[Grid, Grid]:
        """(height, width) of each patch of a frame [rows,2], and the width axis they were built from."""
        _, patch_height, patch_width = self._patch
        root = np.sqrt(latent_height * latent_width)
        heights, widths = _axis(latent_height, patch_height, root), _axis(latent_width, patch_width, root)
        grid = np.stack(np.meshgrid(heights, widths, indexing="ij"), axis=-1).reshape(-1, 2)
        return grid, widths

    def add_condition(self, condition: Condition, target: Target, target_grid: Grid, target_widths: Grid) -> None:
        if isinstance(condition, Keyframe):
            # Keyframes stand inside the clip's own time and do not move the clock.
            last = self.clock + _pairwise_span(target.latent_frames) - _UNITS_PER_FRAME
            self.add_frames(np.array([self.clock if condition.anchor == "first" else last]), target_grid)
        elif isinstance(condition, PictureReference):
            grid, _ = self.frame_grid(condition.latent_height, condition.latent_width)
            self.add_frames(np.array([self.clock]), grid)
            self.clock += 1.0
        elif isinstance(condition, SoundReference):
            self.add_sound(condition.num_latents, self.clock, target_widths)
            self.clock += float(condition.num_latents)
        else:
            grid, widths = self.frame_grid(condition.latent_height, condition.latent_width)
            self.add_sound(condition.sound_latents, self.clock, widths)
            self.add_frames(_frame_times(condition.latent_frames, self.clock), grid)
            self.clock += max(float(condition.sound_latents), _running_span(condition.latent_frames))

    def add_frames(self, times: Grid, grid: Grid) -> None:
        rows = np.empty((len(times), len(grid), 3))
        rows[..., 0] = times[:, None]
        rows[..., 1:] = grid
        self._append(rows.reshape(-1, 3), self.video)

    def add_sound(self, num_latents: int, origin: float, widths: Grid) -> None:
        rows = np.zeros((AUDIO_CHANNELS, num_latents, 3))
        rows[..., 0] = origin + np.arange(num_latents)
        # The ears are the two ends of the picture.
        rows[0, :, 2], rows[1, :, 2] = widths[0], widths[-1]
        self._append(rows.reshape(-1, 3), self.audio)

    def _append(self, rows: Grid, blocks: list[range]) -> None:
        blocks.append(range(self.num_rows, self.num_rows + len(rows)))
        self._positions.append(rows)
        self.num_rows += len(rows)

    def layout(self, video_row_start: int, grid: tuple[int, int, int]) -> PackedLayout:
        video, audio = (torch.tensor([row for block in blocks for row in block]) for blocks in (self.video, self.audio))
        text = torch.arange(len(self._text_tags))
        tags = torch.empty(self.num_rows, dtype=torch.int64)
        tags[text], tags[video], tags[audio] = self._text_tags, VIDEO_TAG, AUDIO_TAG
        return PackedLayout(
            position_ids=torch.from_numpy(np.concatenate(self._positions)),
            token_tags=tags,
            video_indices=video,
            audio_indices=audio,
            text_indices=text,
            num_condition_video_rows=self.num_conditions[0],
            num_condition_audio_rows=self.num_conditions[1],
            video_row_start=video_row_start,
            grid=grid,
        )


def _axis(size: int, patch: int, root_area: float) -> Grid:
    ratio = size / root_area
    left = (1.0 - ratio) / 2.0
    return np.linspace(left, left + ratio, size // patch, endpoint=False) * _SPATIAL_UNITS


def _spans(latent_frames: int) -> list[float]:
    return [_UNITS_PER_FRAME * _FRAMES_PER_LATENT[k % len(_FRAMES_PER_LATENT)] for k in range(latent_frames)]


def _frame_times(latent_frames: int, origin: float) -> Grid:
    times: Grid = origin + np.concatenate([[0.0], np.cumsum(_spans(latent_frames)[:-1])])
    return times


def _pairwise_span(latent_frames: int) -> float:
    # The reference sums the last keyframe's time with numpy, pairwise, and the references' clock from left to right
    # (`_running_span`); from 16 frames on the two differ in the last bit, and both are part of the trained model.
    return float(np.array(_spans(latent_frames)).sum())


def _running_span(latent_frames: int) -> float:
    total = 0.0
    for span in _spans(latent_frames):
        total += span
    return total


def patchify(latents: Tensor, patch_size: tuple[int, int, int]) -> Tensor:
    """Picture latents [1,C,T,H,W] to rows [N, C*pt*ph*pw]: frame by frame, line by line; in a row the channel is slowest."""
    _, channels, frames, height, width = latents.shape
    pt, ph, pw = patch_size
    split = latents.reshape(channels, frames // pt, pt, height // ph, ph, width // pw, pw)
    return split.permute(1, 3, 5, 0, 2, 4, 6).reshape(-1, channels * pt * ph * pw).contiguous()


def unpatchify(rows: Tensor, target: Target, patch_size: tuple[int, int, int]) -> Tensor:
    """The inverse of `patchify`: [N, C*pt*ph*pw] to [1,C,T,H,W]."""
    pt, ph, pw = patch_size
    frames, height, width = target.latent_frames // pt, target.latent_height // ph, target.latent_width // pw
    split = rows.reshape(frames, height, width, -1, pt, ph, pw).permute(3, 0, 4, 1, 5, 2, 6)
    return split.reshape(1, -1, target.latent_frames, target.latent_height, target.latent_width).contiguous()


def sound_rows(latents: Tensor) -> Tensor:
    """Sound latents [2,C,T] to rows [2*T,C]: all of the left ear, then all of the right."""
    return latents.permute(0, 2, 1).reshape(-1, latents.shape[1]).contiguous()


def sound_latents(rows: Tensor) -> Tensor:
    """The inverse of `sound_rows`: [2*T,C] to [2,C,T]."""
    return rows.reshape(AUDIO_CHANNELS, -1, rows.shape[1]).permute(0, 2, 1).contiguous()
