"""A single picture as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireel.media.aside import written_aside

if TYPE_CHECKING:
    from pathlib import Path

    from omnireel.request import FramesU8

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
"""What a picture's name may end in; pass them to `check_writable` to ask before there is a picture."""


def write_picture(frame: FramesU8, path: Path) -> None:
    """Writes uint8 [H,W,3] in the format of the path's suffix; the file appears whole or not at all.

    Raises:
        InvalidRequest: the path cannot be written, or its suffix is no picture format.
    """
    from PIL import Image

    with written_aside(path, suffixes=PICTURE_SUFFIXES) as aside:
        Image.fromarray(frame).save(aside)
