"""What a picture, clip or recording is, told from its own bytes before anything of it is decoded.

A file's name is never believed. Pixels are counted as shown, that is after the rotation that the file asks for.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from omnireel.errors import MediaUnreadable
from omnireel.request import MediaFacts, MediaKind

if TYPE_CHECKING:
    from PIL.Image import Image

Source: TypeAlias = Path | bytes
"""A file on disk, or the whole file in memory."""

MAX_PICTURE_PIXELS = 100_000_000
"""More than any camera makes; a small file that unpacks to more is refused before it is unpacked."""

CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,wav,w64,mp3,flac,ogg,aac,aiff,caf"
"""FFmpeg's names of containers that hold their own data. Playlists are left out: they make FFmpeg open other files."""

_PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "HEIF", "AVIF", "GIF", "BMP", "TIFF")


def inspect_media(source: Source, *, kind: MediaKind, name: str) -> MediaFacts:
    """The facts of a file that should be of this kind; `name` is what error messages call it.

    Raises:
        MediaUnreadable: it is missing, empty, broken or of another kind.
    """
    size_bytes = _size(source, name)
    if kind is MediaKind.IMAGE:
        with open_picture(source, name=name) as picture:
            width, height = picture.size
            with picture_errors(name):
                if _is_turned(picture):
                    width, height = height, width
            return MediaFacts(
                kind=kind, container=str(picture.format).lower(), size_bytes=size_bytes, width=width, height=height
            )
    with open_container(source, name=name) as container:
        return _container_facts(container, kind=kind, size_bytes=size_bytes, name=name)


def open_picture(source: Source, *, name: str) -> Image:
    """A Pillow picture with its header read and its size within bounds; pixels are not decoded yet."""
    from PIL import Image, UnidentifiedImageError

    _register_heif()
    with picture_errors(name):
        try:
            picture = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats())
        except UnidentifiedImageError:
            raise MediaUnreadable(
                name, "is not a picture", hint="JPEG, PNG, WebP, HEIC, AVIF and GIF are read"
            ) from None
    if picture.width * picture.height > MAX_PICTURE_PIXELS:
        size = f"{picture.width}x{picture.height}"
        picture.close()
        raise MediaUnreadable(name, f"has {size} pixels", hint=f"at most {MAX_PICTURE_PIXELS} pixels are read")
    return picture


@contextmanager
def picture_errors(name: str) -> Iterator[None]:
    """Around whatever Pillow does with a file, whose plugins let errors of many kinds through and print warnings.

    Raises:
        MediaUnreadable: the file is broken.
    """
    from PIL import Image

    with warnings.catch_warnings():
        # Of its size Pillow warns at half its own limit, where ours is the one that counts; other warnings are about tags.
        warnings.simplefilter("ignore")
        try:
            yield
        except MediaUnreadable:
            raise
        except (
            ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError, TypeError,
            ValueError, struct.error, zlib.error, Image.DecompressionBombError,
        ) as error:  # fmt: skip
            raise MediaUnreadable(name, f"cannot be read as a picture ({reason(error)})") from None


def first_stream(container: Any, kind: str) -> Any:
    """The first "video" or "audio" stream that can be decoded, None without one; phones put others beside it."""
    found = (stream for stream in container.streams if stream.type == kind)
    return next((stream for stream in found if stream.codec_context is not None), None)


def open_container(source: Source, *, name: str, hint: str = "") -> Any:
    """A PyAV input container; use it as a context manager. `hint` goes with the error.

    Raises:
        MediaUnreadable: FFmpeg finds no media in it.
    """
    import av

    try:
        # A relative name such as "http:a.mp4" would be taken for a protocol.
        opened = io.BytesIO(source) if isinstance(source, bytes) else str(source.absolute())
        return av.open(opened, metadata_errors="ignore", container_options={"format_whitelist": CONTAINERS})
    except (av.FFmpegError, OSError, ValueError) as error:
        raise MediaUnreadable(name, f"cannot be read as a clip or recording ({reason(error)})", hint=hint) from None


def _container_facts(container: Any, *, kind: MediaKind, size_bytes: int, name: str) -> MediaFacts:
    video, audio = first_stream(container, "video"), first_stream(container, "audio")
    if kind is MediaKind.VIDEO and video is None:
        raise MediaUnreadable(name, "has no pictures")
    if kind is MediaKind.AUDIO and audio is None:
        raise MediaUnreadable(name, "has no sound")
    facts: dict[str, Any] = {}
    if audio is not None:
        facts |= {
            "audio_codec": audio.codec_context.name,
            "channels": audio.codec_context.channels,
            "sample_rate_hz": audio.codec_context.sample_rate,
        }
    if kind is MediaKind.VIDEO and video is not None:
        width, height = video.codec_context.width, video.codec_context.height
        if first_rotation(container, name=name) % 180:
            width, height = height, width
        rate = video.average_rate or video.guessed_rate or Fraction(0)
        facts |= {"video_codec": video.codec_context.name, "width": width, "height": height, "fps": float(rate)}
    return MediaFacts(
        kind=kind,
        container=container.format.name,
        size_bytes=size_bytes,
        seconds=max(0.0, (container.duration or 0) / 1_000_000),
        **facts,
    )


def first_rotation(container: Any, *, name: str) -> int:
    """Degrees, counter-clockwise, by which the first frame must be turned to be shown; rewinds the container."""
    import av

    try:
        frame = next(container.decode(first_stream(container, "video")), None)
        container.seek(0)
    except (av.FFmpegError, ValueError) as error:
        raise MediaUnreadable(name, f"has pictures that cannot be decoded ({reason(error)})") from None
    if frame is None:
        raise MediaUnreadable(name, "has no pictures")
    return int(frame.rotation)


def _size(source: Source, name: str) -> int:
    if isinstance(source, bytes):
        size_bytes = len(source)
    else:
        try:
            if not source.is_file():
                raise MediaUnreadable(name, "is not a file" if source.exists() else "does not exist")
            size_bytes = source.stat().st_size
        except OSError as error:
            raise MediaUnreadable(name, f"cannot be opened ({reason(error)})") from None
    if size_bytes == 0:
        raise MediaUnreadable(name, "is empty")
    return size_bytes


def _is_turned(picture: Image) -> bool:
    from PIL import ExifTags

    # Orientations 5 to 8 exchange width and height (EXIF 2.32, table 3).
    return picture.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)


def _register_heif() -> None:
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return
    register_heif_opener()


def _formats() -> tuple[str, ...]:
    from PIL import Image

    Image.init()
    return tuple(form for form in _PICTURE_FORMATS if form in Image.OPEN)


def reason(error: BaseException) -> str:
    """What a library's error says, without the path of the file, which is not for every reader."""
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or type(error).__name__
