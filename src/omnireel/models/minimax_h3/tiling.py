"""How the video VAE cuts a clip: tiles over height and width, short clips over time. Plain numbers, no tensors.

The cuts are part of what the model was trained with: another plan gives another picture. A `CutPlan` lists all pieces as
jobs; any process may do any of them, and what they make is put together in their order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

TILE_PIXELS = 256
MIN_OVERLAP_PIXELS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """Tiles along one axis in pixels: `starts[k]` to `starts[k] + length`; overlaps[k] is shared by tiles k and k + 1."""

    starts: tuple[int, ...]
    length: int
    overlaps: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.starts)

    def scaled(self, factor: int) -> TilePlan:
        """The same tiles in latents, where `factor` pixels are one; all numbers are multiples of it."""
        return TilePlan(
            starts=tuple(start // factor for start in self.starts),
            length=self.length // factor,
            overlaps=tuple(overlap // factor for overlap in self.overlaps),
        )


def plan_tiles(
    length: int, *, tile: int = TILE_PIXELS, min_overlap: int = MIN_OVERLAP_PIXELS, step: int = 16
) -> TilePlan:
    """The fewest full tiles that cover `length` with overlaps of at least `min_overlap`.

    What they cover too much is given to the overlaps in steps of `step` pixels, one after another from the first.
    """
    if length <= tile:
        return TilePlan(starts=(0,), length=length, overlaps=())
    # n tiles cover n * tile - (n - 1) * overlap.
    count = math.ceil((length - min_overlap) / (tile - min_overlap))
    spare_steps = (count * tile - (count - 1) * min_overlap - length) // step
    each, more = divmod(spare_steps, count - 1)
    overlaps = tuple(min_overlap + step * (each + (k < more)) for k in range(count - 1))
    starts = [0]
    for overlap in overlaps:
        starts.append(starts[-1] + tile - overlap)
    return TilePlan(starts=tuple(starts), length=tile, overlaps=overlaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRules:
    """How time is cut: `clip_length` frames are encoded together and give one latent for the first odd frame and one for
    each `ratio` after it; of the last clip `token_drop` latents are dropped.
    """

    clip_length: int
    token_drop: int
    ratio: int

    @property
    def latents_per_clip(self) -> int:
        """Latents of one encoded clip."""
        return math.ceil(self.clip_length / self.ratio)

    @property
    def lead(self) -> int:
        """Frames that a decoded clip has too many at its front, since its first latent stands for fewer than `ratio`."""
        return -self.clip_length % self.ratio

    @property
    def overlap_latents(self) -> int:
        """Latents of the next clip that are decoded with a clip."""
        return -self.token_drop % self.latents_per_clip

    @property
    def overlap_frames(self) -> int:
        """Frames over which two decoded clips are blended."""
        return max(self.overlap_latents * self.ratio - self.lead, 0)

    def frames_of(self, num_latents: int) -> int:
        """Frames that so many latents stand for."""
        first = self.clip_length % self.ratio or self.ratio
        return sum(self.ratio if k % self.latents_per_clip else first for k in range(num_latents))

    def clips_of(self, num_latents: int) -> int:
        """Clips that are decoded; latents that are missing from the last one are repeated."""
        whole = math.ceil((num_latents + self.token_drop) / self.latents_per_clip)
        return max(1, whole - int(self.token_drop > 0))

    def latents_needed(self, num_latents: int) -> int:
        """Latents that the clips take up together."""
        return self.clips_of(num_latents) * self.latents_per_clip + self.overlap_latents


@dataclass(frozen=True, slots=True, kw_only=True)
class TileRules:
    """How height and width are cut, in pixels, `ratio` of which are one latent."""

    ratio: int
    edge: int = TILE_PIXELS
    min_overlap: int = MIN_OVERLAP_PIXELS

    def plan(self, height: int, width: int) -> tuple[TilePlan, TilePlan]:
        """Tiles of rows and of columns."""
        rows, columns = (
            plan_tiles(length, tile=self.edge, min_overlap=self.min_overlap, step=self.ratio)
            for length in (height, width)
        )
        return rows, columns


class Job(NamedTuple):
    """One tile of one clip."""

    clip: int
    row: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPlan:
    """Every piece that a clip is cut into. Clip k takes the places from `k * step` to `k * step + extent` along time; those past
    the end repeat the last one. Tiles are in units of what is cut in `source` and of what is made of it in `made`.
    """

    num_clips: int
    step: int
    extent: int
    source: tuple[TilePlan, TilePlan]
    made: tuple[TilePlan, TilePlan]
    last_extent: int
    """Places of the last clip that are looked at."""

    def extent_of(self, job: Job) -> int:
        """Places along time of a job."""
        return self.last_extent if job.clip == self.num_clips - 1 else self.extent

    @property
    def tiles_per_clip(self) -> int:
        """Jobs of one clip."""
        rows, columns = self.source
        return len(rows) * len(columns)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All pieces, clip after clip, row after row. A share of the work is a slice of it: `jobs[rank::num_ranks]`."""
        rows, columns = self.source
        return tuple(
            Job(clip, row, column)
            for clip in range(self.num_clips)
            for row in range(len(rows))
            for column in range(len(columns))
        )


def plan_encode(
    clips: ClipRules, tiles: TileRules, frames: int, height: int, width: int, *, is_trimmed: bool = False
) -> CutPlan:
    """Pixels to latents. A single frame is a clip by itself; of more, each clip has its full length.

    is_trimmed: of the last clip, whose last latents are dropped, only what the others are made of; a latent hears of no later
    frame. A library may compute so few frames by another algorithm, with other last bits.
    """
    extent = 1 if frames == 1 else clips.clip_length
    kept = clips.frames_of(clips.latents_per_clip - clips.token_drop)
    pixels, latents = _both_units(tiles, height, width)
    return CutPlan(
        num_clips=math.ceil(frames / extent),
        step=extent,
        extent=extent,
        source=pixels,
        made=latents,
        last_extent=min(extent, kept) if is_trimmed else extent,
    )


def plan_decode(clips: ClipRules, tiles: TileRules, frames: int, height: int, width: int) -> CutPlan:
    """Latents, of which the size is given, to pixels. Each clip is decoded with the first latents of the next."""
    step = clips.latents_per_clip
    pixels, latents = _both_units(tiles, tiles.ratio * height, tiles.ratio * width)
    extent = step + clips.overlap_latents
    return CutPlan(
        num_clips=clips.clips_of(frames), step=step, extent=extent, source=latents, made=pixels, last_extent=extent
    )


def _both_units(
    tiles: TileRules, height: int, width: int
) -> tuple[tuple[TilePlan, TilePlan], tuple[TilePlan, TilePlan]]:
    rows, columns = tiles.plan(height, width)
    return (rows, columns), (rows.scaled(tiles.ratio), columns.scaled(tiles.ratio))
