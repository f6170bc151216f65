"""How the video VAE cuts a clip: tiles over height and width, short clips over time. Plain numbers, no tensors.

The cuts are part of what the model was trained with: another plan gives another picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
