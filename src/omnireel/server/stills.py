"""Pictures of a finished clip beside it: a thumbnail, and a sheet of frames over its length."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from omnireel.media.decode import fitted_frames
from omnireel.media.image import write_picture

if TYPE_CHECKING:
    from omnireel.engine.result import GenerationResult
    from omnireel.request import FramesU8

logger = logging.getLogger(__name__)

THUMBNAIL, SPRITESHEET = "thumbnail.webp", "spritesheet.jpg"
THUMBNAIL_EDGE, SPRITE_EDGE = 512, 240
COLUMNS, ROWS = 5, 2


def write_stills(result: GenerationResult, folder: Path) -> None:
    """Writes both into a job's folder. That they cannot be made costs them, never the clip."""
    frames = result.frames
    if frames is None:
        return
    try:
        write_picture(_small(frames[len(frames) // 3][None], THUMBNAIL_EDGE)[0], folder / THUMBNAIL)
        write_picture(sheet(frames), folder / SPRITESHEET)
    except Exception:
        logger.exception("no pictures of %s", result.request_id)


def sheet(frames: FramesU8) -> FramesU8:
    """COLUMNS by ROWS frames of uint8 [T,H,W,3], evenly over the clip, as one picture; read line by line."""
    chosen = np.linspace(0, len(frames) - 1, COLUMNS * ROWS).round().astype(int)
    small = _small(frames[chosen], SPRITE_EDGE)
    _, height, width, _ = small.shape
    grid = small.reshape(ROWS, COLUMNS, height, width, 3).swapaxes(1, 2)
    return np.ascontiguousarray(grid.reshape(ROWS * height, COLUMNS * width, 3))


def _small(frames: FramesU8, edge: int) -> FramesU8:
    """Frames whose longer side is at most `edge`."""
    height, width = frames.shape[1:3]
    scale = min(1.0, edge / max(height, width))
    return fitted_frames(frames, (max(1, round(width * scale)), max(1, round(height * scale))))
