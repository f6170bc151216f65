"""A single picture as a file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from omnireel.errors import InvalidRequest
from omnireel.media.aside import written_aside

if TYPE_CHECKING:
    from pathlib import Path

    from omnireel.request import FramesU8

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
"""What a picture's name may end in; pass them to `check_writable` to ask before there is a picture."""

QUALITY = 95
"""Of JPEG and WebP, whose own defaults of 75 and 80 smear fine colour. PNG loses nothing."""


def write_picture(frame: FramesU8, path: Path) -> None:
    """Writes uint8 [H,W,3] in the format of the path's suffix; the file appears whole or not at all.

    Raises:
        InvalidRequest: the path cannot be written, its suffix is no picture format, or the frame is of another shape.
    """
    from PIL import Image

    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or not frame.size:
        raise InvalidRequest("frame", f"{frame.dtype} {frame.shape}", "it must be uint8 (height, width, 3)")
    with written_aside(path, suffixes=PICTURE_SUFFIXES) as aside:
        Image.fromarray(frame).save(aside, quality=QUALITY)


def picture_bytes(frame: FramesU8, form: str) -> bytes:
    """uint8 [H,W,3] as the bytes of a picture; `form` is Pillow's name of the format ("jpeg", "png", "webp")."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(frame).save(stream, form, quality=QUALITY)
    return stream.getvalue()
