"""A single picture as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireel.media.aside import written_aside

if TYPE_CHECKING:
    from pathlib import Path

    from omnireel.request import FramesU8


def write_picture(frame: FramesU8, path: Path) -> None:
    """Writes uint8 [H,W,3] in the format of the path's suffix; the file appears whole or not at all.

    Raises:
        InvalidRequest: the path cannot be written, or its suffix is no picture format.
    """
    from PIL import Image

    with written_aside(path, suffixes=(".png", ".jpg", ".jpeg", ".webp")) as aside:
        Image.fromarray(frame).save(aside)
