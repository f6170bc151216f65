"""What a checkpoint of MiniMax-H3 is made for, read from its pipeline index. No weights, no torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omnireel.errors import BadCheckpoint
from omnireel.models.minimax_h3.layout import T2VA, Layout, resolve_layout
from omnireel.models.protocol import Checkpoint
from omnireel.weights.index import read_json

FPS = 24
COMPRESSION = 16
"""Pixels of an edge to one latent."""
CANVAS_MULTIPLE = 2 * COMPRESSION
"""A patch is two latents wide and high."""
MIN_SECONDS, MAX_SECONDS = 4.0, 15.0
MIN_RATIO, MAX_RATIO = 1 / 4, 4.0
MAX_ROWS = 1_048_576
FRAMES_PER_CHUNK, LATENTS_PER_CHUNK = 17, 5
TAIL_FRAMES, TAIL_LATENTS = 5, 2
SOUND_LATENTS_PER_SECOND = 40
ASPECT_RATIOS: Mapping[str, tuple[int, int]] = {
    "21:9": (21, 9), "16:9": (16, 9), "4:3": (4, 3), "1:1": (1, 1), "3:4": (3, 4), "9:16": (9, 16),
}  # fmt: skip

EXTENSION_KEY = "_omnireel"
"""A block of the pipeline index for what the published layout has no word for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Defaults and geometry of a checkpoint; what is written here is the released one.

    canvas_ and reference_ values are keys of the published index; the others come from its `_omnireel` block.
    base_schedule: points of the noise schedule before they are shifted, which a distilled checkpoint pins.
    condition_layer: decoder layers of the text encoder that are run; their output is what the model reads.
    """

    canvas_short_edge: int = 768
    canvas_max_pixels: int = 768 * 1344
    reference_image_short_edge: int = 2048
    condition_layer: int = 50
    default_num_frames: int = 209
    default_reference_num_frames: int = 124
    default_num_inference_steps: int = 50
    base_schedule: tuple[float, ...] | None = None
    shifts: Mapping[str, float] = field(default_factory=lambda: {"video": 12.0, "audio": 3.0})

    @classmethod
    def of(cls, checkpoint: Checkpoint, task: str = T2VA) -> Limits:
        """The limits that a checkpoint declares; schedules are those of the partition that runs the task.

        Raises:
            BadCheckpoint: a value is not a positive number, or the extension has an unknown key.
        """
        published = ("canvas_short_edge", "canvas_max_pixels", "reference_image_short_edge")
        own = ("condition_layer", "default_num_frames", "default_reference_num_frames", "default_num_inference_steps")
        given = {key: checkpoint.index[key] for key in published if key in checkpoint.index}
        extension = checkpoint.index.get(EXTENSION_KEY, {})
        if not isinstance(extension, dict):
            raise BadCheckpoint("pipeline index", "must hold an object", key=EXTENSION_KEY, found=repr(extension)[:80])
        for key in extension.keys() - set(own):
            raise BadCheckpoint(
                "pipeline index", "has an unknown key", key=f"{EXTENSION_KEY}.{key}", expected=", ".join(own)
            )
        given |= extension
        for key, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
                raise BadCheckpoint("pipeline index", "has a value that is no count", key=key, found=repr(value)[:80])
        if checkpoint.path is None:
            return cls(**given)
        layout = resolve_layout(checkpoint)
        return cls(**given, base_schedule=_base_schedule(layout.block_of(task)), shifts=_shifts(layout, task))


def _base_schedule(block: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Strictly falling from at most 1 to 0, as a list or a text with commas."""
    told = block.get("base_schedule")
    if told is None:
        return None
    try:
        points = tuple(float(point) for point in (told.split(",") if isinstance(told, str) else told))
    except (OverflowError, TypeError, ValueError):
        points = ()
    falls = all(before > after for before, after in itertools.pairwise(points))
    if len(points) < 2 or not falls or not 0 < points[0] <= 1 or points[-1] != 0:
        raise BadCheckpoint("model_index.json", "has no usable schedule", key="base_schedule", found=repr(told))
    return points


def _shifts(layout: Layout, task: str) -> Mapping[str, float]:
    """The shift of each schedule, from the scheduler folders or a partition's own block, where there are any."""
    found = {"video": 12.0, "audio": 3.0}
    said = layout.block_of(task).get("sigma_shift_scales") or {}
    if not isinstance(said, dict):
        raise BadCheckpoint("model_index.json", "must hold an object", key="sigma_shift_scales", found=repr(said))
    told = dict(said)
    for medium, folder in layout.schedulers.items():
        if (folder / "scheduler_config.json").is_file():
            told[medium] = read_json(folder / "scheduler_config.json").get("shift", found[medium])
    for medium, usual in tuple(found.items()):
        shift = told.get(medium, usual)
        if isinstance(shift, bool) or not isinstance(shift, int | float) or not 0 < shift < 1e6:
            where = (
                "model_index.json" if layout.is_native else f"{layout.schedulers[medium].name}/scheduler_config.json"
            )
            raise BadCheckpoint(where, "has no usable shift", key="shift", found=repr(shift))
        found[medium] = float(shift)
    return found


def canvas(aspect_width: float, aspect_height: float, limits: Limits) -> tuple[int, int]:
    """(height, width) for a ratio: the short edge as declared, the area capped, both rounded to multiples of 32."""
    ratio = aspect_width / aspect_height
    short = float(limits.canvas_short_edge)
    width, height = (short * ratio, short) if ratio >= 1 else (short, short / ratio)
    if width * height > limits.canvas_max_pixels:
        scale = math.sqrt(limits.canvas_max_pixels / (width * height))
        width, height = width * scale, height * scale
    return _rounded(height), _rounded(width)


def _rounded(size: float) -> int:
    return max(CANVAS_MULTIPLE, round(size / CANVAS_MULTIPLE) * CANVAS_MULTIPLE)


def aligned_frames(num_frames: int) -> int:
    """The next count of the form 17n + 5 that the video VAE can decode."""
    chunks = max(0, math.ceil((num_frames - TAIL_FRAMES) / FRAMES_PER_CHUNK))
    return chunks * FRAMES_PER_CHUNK + TAIL_FRAMES


def latent_frames(num_frames: int) -> int:
    """Latent frames of an aligned count."""
    return (num_frames - TAIL_FRAMES) // FRAMES_PER_CHUNK * LATENTS_PER_CHUNK + TAIL_LATENTS


def sound_latents_of(num_frames: int) -> int:
    """Sound latents a channel for a clip of that many frames."""
    return round(num_frames / FPS * SOUND_LATENTS_PER_SECOND)


def packed_rows(height: int, width: int, num_frames: int) -> int:
    """Rows of sound and picture of a clip, text and conditions not counted."""
    patches = (height // CANVAS_MULTIPLE) * (width // CANVAS_MULTIPLE)
    return latent_frames(num_frames) * patches + 2 * sound_latents_of(num_frames)
