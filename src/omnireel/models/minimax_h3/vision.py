"""Pictures and pairs of frames as the patches that Qwen3-VL reads, prepared with Pillow and numpy.

Letters: T frames, H height, W width, P patches, D values of a patch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from omnireel.errors import BadCheckpoint
from omnireel.models.minimax_h3.references import FRAMES_PER_BLOCK, shown_indices
from omnireel.request import MediaInput, MediaKind
from omnireel.weights import read_json

if TYPE_CHECKING:
    import numpy.typing as npt

    from omnireel.request import FramesU8


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchRules:
    """How frames become patches. A frame's pixels (a clip's: of all its shown frames) are brought between the two bounds."""

    min_pixels: int
    max_pixels: int
    patch_size: int = 16
    merge_size: int = 2
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    @classmethod
    def read(cls, file: Path, default: PatchRules) -> PatchRules:
        """What a checkpoint's `processor` folder says; `default` where it says nothing."""
        if not file.is_file():
            return default
        data = read_json(file)
        try:
            size = dict(data.get("size") or {})
            rules = cls(
                min_pixels=int(size.get("shortest_edge", data.get("min_pixels", default.min_pixels))),
                max_pixels=int(size.get("longest_edge", data.get("max_pixels", default.max_pixels))),
                patch_size=int(data.get("patch_size", default.patch_size)),
                merge_size=int(data.get("merge_size", default.merge_size)),
                mean=tuple(float(v) for v in data.get("image_mean", default.mean)),
                std=tuple(float(v) for v in data.get("image_std", default.std)),
            )
        except (OverflowError, TypeError, ValueError):
            raise BadCheckpoint(f"processor/{file.name}", "has a value that is no number") from None
        if not rules._are_usable():
            raise BadCheckpoint(f"processor/{file.name}", "has sizes or colours that no picture can be brought to")
        return rules

    def _are_usable(self) -> bool:
        sizes = self.patch_size, self.merge_size, self.min_pixels
        colours = len(self.mean) == len(self.std) == 3 and all(map(math.isfinite, (*self.mean, *self.std)))
        return min(sizes) >= 1 and self.min_pixels <= self.max_pixels and colours and all(self.std)


# Qwen3-VL's own processors; a checkpoint's files say the same or otherwise.
PICTURE_RULES = PatchRules(min_pixels=65_536, max_pixels=16_777_216)
CLIP_RULES = PatchRules(min_pixels=4_096, max_pixels=25_165_824)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patches:
    """patches: float32 [P,D]; grids: int64 [n,3] of (pairs, rows, columns) in patches, one row a picture or clip."""

    patches: Tensor
    grids: Tensor
    merge_size: int

    def tokens(self, index: int) -> int:
        """Rows of the text encoder that one picture, or one pair of a clip's frames, takes."""
        _, rows, columns = self.grids[index].tolist()
        return int(rows) * int(columns) // self.merge_size**2


def picture_patches(media: tuple[MediaInput, ...], rules: PatchRules) -> Patches | None:
    """All pictures of a request; None where there are none."""
    frames = [item.frames for item in media if item.kind is MediaKind.IMAGE and item.frames is not None]
    return _patches([np.repeat(picture, FRAMES_PER_BLOCK, axis=0) for picture in frames], rules, is_clip=False)


def clip_patches(media: tuple[MediaInput, ...], rules: PatchRules) -> Patches | None:
    """The shown frames of all clips of a request; None where there are none."""
    clips = [item.frames for item in media if item.kind is MediaKind.VIDEO and item.frames is not None]
    return _patches([_paired(clip[shown_indices(len(clip))]) for clip in clips], rules, is_clip=True)


def fitted_size(height: int, width: int, num_frames: int, rules: PatchRules) -> tuple[int, int]:
    """(height, width) in multiples of patch and merge, scaled so that the pixels of all frames lie within the bounds.

    Source: Qwen's smart resize; for pictures num_frames is 1.
    """
    factor = rules.patch_size * rules.merge_size
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    # Python's rounding, half to even, is part of the rule.
    fitted = max(factor, round(height / factor) * factor), max(factor, round(width / factor) * factor)
    counted = num_frames if num_frames == 1 else round(num_frames / FRAMES_PER_BLOCK) * FRAMES_PER_BLOCK
    pixels = counted * fitted[0] * fitted[1]
    if pixels > rules.max_pixels:
        shrink = math.sqrt(num_frames * height * width / rules.max_pixels)
        down = [max(factor, math.floor(edge / shrink / factor) * factor) for edge in (height, width)]
        return down[0], down[1]
    if pixels < rules.min_pixels:
        grow = math.sqrt(rules.min_pixels / (num_frames * height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return fitted


def _paired(frames: FramesU8) -> FramesU8:
    odd = len(frames) % FRAMES_PER_BLOCK
    return np.concatenate([frames, np.repeat(frames[-1:], odd, axis=0)]) if odd else frames


def _patches(clips: list[FramesU8], rules: PatchRules, *, is_clip: bool) -> Patches | None:
    if not clips:
        return None
    made = [_cut(clip, rules, num_frames=len(clip) if is_clip else 1) for clip in clips]
    grids = torch.tensor([grid for _, grid in made], dtype=torch.int64)
    patches = torch.from_numpy(np.concatenate([values for values, _ in made]))
    return Patches(patches=patches, grids=grids, merge_size=rules.merge_size)


def _cut(frames: FramesU8, rules: PatchRules, *, num_frames: int) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Frames [T,H,W,3] to patches [P,D], ordered by merged block; a patch is (channel, frame of the pair, row, column)."""
    size, merge = rules.patch_size, rules.merge_size
    resized = _resized(frames, fitted_size(frames.shape[1], frames.shape[2], num_frames, rules))
    unit = resized.astype(np.float32) * np.float32(1 / 255)
    values = (unit - np.array(rules.mean, np.float32)) / np.array(rules.std, np.float32)
    pairs, rows, columns = len(values) // FRAMES_PER_BLOCK, values.shape[1] // size, values.shape[2] // size
    split = values.reshape(pairs, FRAMES_PER_BLOCK, rows // merge, merge, size, columns // merge, merge, size, 3)
    ordered = split.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return np.ascontiguousarray(ordered.reshape(pairs * rows * columns, -1)), [pairs, rows, columns]


def _resized(frames: FramesU8, size: tuple[int, int]) -> FramesU8:
    if frames.shape[1:3] == size:
        return frames
    made = np.empty((len(frames), *size, 3), np.uint8)
    for k, frame in enumerate(frames):
        made[k] = np.asarray(Image.fromarray(frame).resize((size[1], size[0]), Image.Resampling.BICUBIC))
    return made
