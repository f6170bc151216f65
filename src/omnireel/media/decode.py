"""Files to arrays: pictures, clips and recordings, whatever their format, rotation, rate or channel count.

Frames are decoded, placed on the time grid and resized one at a time, so memory holds the result and one frame.
Shape letters: T frames, H height, W width, C channels, N samples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from omnireel.errors import MediaUnreadable
from omnireel.media.inspect import Source, first_stream, open_container, open_picture, picture_errors, reason

if TYPE_CHECKING:
    from PIL.Image import Image

    from omnireel.request import FramesU8, WaveF32

ALPHA_COLOUR = (255, 255, 255)
"""Transparent pixels are shown over white."""

MAX_CLIP_FRAMES = 20_000
"""Decoded frames after which a clip is refused: thirteen minutes at 25 frames a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """wave: float32 [C,N] in [-1,1], C is 1 or 2, at the rate of the file."""

    wave: WaveF32
    sample_rate_hz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """frames: uint8 [T,H,W,3] RGB on an even grid of `fps`; sound: None when the file has none."""

    frames: FramesU8
    fps: float
    sound: Sound | None


def read_picture(source: Source, *, name: str, size: tuple[int, int] | None = None, is_cover: bool = False) -> FramesU8:
    """A picture as it is meant to be seen: EXIF turned, alpha over white, any colour model as RGB.

    Args:
        source: the file; of an animation the first frame is taken.
        name: what error messages call it.
        size: (width, height) to resize to with Lanczos; None keeps the size.
        is_cover: scale to cover the size and crop the middle; otherwise the axes are scaled apart.

    Returns:
        uint8 [1,H,W,3].
    """
    from PIL import ImageOps

    with open_picture(source, name=name) as opened:
        with picture_errors(name):
            opened.seek(0)
            opened.load()
            shown = _as_rgb(ImageOps.exif_transpose(opened))
        return np.asarray(_fitted(shown, size, is_cover=is_cover))[None].copy()


def read_clip(
    source: Source,
    *,
    name: str,
    fps: float | None,
    size: tuple[int, int] | None = None,
    max_frames: int | None = None,
    start_seconds: float = 0.0,
    max_sound_seconds: float | None = None,
) -> Clip:
    """A clip on an even time grid, by dropping and repeating whole frames as their timestamps say.

    A frame shown from second t fills the slots from floor(t * fps + 0.5) up to the next frame's, so a steady 24 fps clip
    comes through untouched and one of uneven rate keeps its timing.

    Args:
        source: the file; rotation is honoured.
        name: what error messages call it.
        fps: rate of the grid; None for the file's own average.
        size: (width, height) each frame is resized to with Lanczos; None keeps the size.
        max_frames: the grid ends here; None reads to the end.
        start_seconds: the grid starts here in the file.
        max_sound_seconds: sound that is kept; None keeps as much as there are frames.
    """
    with open_container(source, name=name) as container:
        fps = fps or _average_fps(container)
        grid = _Grid(fps=fps, start_seconds=start_seconds, max_frames=max_frames, size=size)
        _fill_grid(grid, _shown_frames(container, name=name))
    if grid.frames is None:
        raise MediaUnreadable(name, f"has no pictures from second {start_seconds:g}")
    seconds = len(grid.frames) / fps if max_sound_seconds is None else max_sound_seconds
    sound = None
    with open_container(source, name=name) as container:
        if first_stream(container, "audio") is not None:
            sound = _sound(container, name=name, start_seconds=start_seconds, max_seconds=seconds)
    return Clip(frames=grid.frames, fps=fps, sound=sound)


def read_sound(source: Source, *, name: str, start_seconds: float = 0.0, max_seconds: float | None = None) -> Sound:
    """A recording, or the sound of a clip, at its own rate; more than two channels are mixed down to stereo."""
    with open_container(source, name=name) as container:
        if first_stream(container, "audio") is None:
            raise MediaUnreadable(name, "has no sound")
        sound = _sound(container, name=name, start_seconds=start_seconds, max_seconds=max_seconds)
    if sound is None:
        raise MediaUnreadable(name, "has no sound")
    return sound


def _as_rgb(picture: Image) -> Image:
    from PIL import Image

    if picture.mode.startswith("I") or picture.mode == "F":
        # 16-bit grey: Pillow's own conversion clips at 255 in place of scaling.
        levels = np.asarray(picture, dtype=np.float64)
        scale = 257.0 if levels.max(initial=0.0) > 255 else 1.0
        picture = Image.fromarray(np.rint(levels / scale).clip(0, 255).astype(np.uint8))
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        ground = Image.new("RGBA", layer.size, (*ALPHA_COLOUR, 255))
        return Image.alpha_composite(ground, layer).convert("RGB")
    return picture.convert("RGB")


def fitted_frames(frames: FramesU8, size: tuple[int, int] | None, *, is_cover: bool = False) -> FramesU8:
    """uint8 [T,H,W,3] resized frame by frame as `read_picture` does; the same array when nothing changes."""
    from PIL import Image

    if size is None or frames.shape[1:3] == (size[1], size[0]):
        return frames
    fitted = np.empty((len(frames), size[1], size[0], 3), np.uint8)
    for k, frame in enumerate(frames):
        fitted[k] = np.asarray(_fitted(Image.fromarray(frame), size, is_cover=is_cover))
    return fitted


def on_grid(frames: FramesU8, fps: float, grid_fps: float, *, max_frames: int | None = None) -> FramesU8:
    """uint8 [T,H,W,3] of a steady rate on a grid of another, by the rule of `read_clip`."""
    if fps != grid_fps:
        slots = np.floor(np.arange(len(frames) + 1) * (grid_fps / fps) + 0.5)
        # Before anything is repeated, for a clip of few frames a second may last for years.
        slots = np.minimum(slots, slots[-1] if max_frames is None else max_frames).astype(np.int64)
        frames = np.repeat(frames, np.diff(slots), axis=0)
    return frames[:max_frames]


def _average_fps(container: Any) -> float:
    stream = first_stream(container, "video")
    rate = None if stream is None else stream.average_rate or stream.guessed_rate
    return float(rate) if rate else 24.0


def _fitted(picture: Image, size: tuple[int, int] | None, *, is_cover: bool) -> Image:
    from PIL import Image

    if size is None or picture.size == size:
        return picture
    if not is_cover:
        return picture.resize(size, Image.Resampling.LANCZOS)
    scale = max(size[0] / picture.width, size[1] / picture.height)
    scaled = (max(size[0], round(picture.width * scale)), max(size[1], round(picture.height * scale)))
    left, top = (scaled[0] - size[0]) // 2, (scaled[1] - size[1]) // 2
    covered = picture.resize(scaled, Image.Resampling.LANCZOS)
    return covered.crop((left, top, left + size[0], top + size[1]))


def _shown_frames(container: Any, *, name: str) -> Iterator[tuple[float, float, FramesU8]]:
    """(start second, length in seconds, uint8 [H,W,3]) of each frame, turned as the file asks."""
    import av

    stream = first_stream(container, "video")
    if stream is None:
        raise MediaUnreadable(name, "has no pictures")
    stream.thread_type = "AUTO"
    rate = stream.average_rate or stream.guessed_rate
    usual = float(1 / rate) if rate else 1 / 24
    first: float | None = None
    try:
        for count, frame in enumerate(container.decode(stream)):
            if count >= MAX_CLIP_FRAMES:
                raise MediaUnreadable(name, f"has more than {MAX_CLIP_FRAMES} frames")
            second = frame.time if frame.time is not None else count * usual
            first = second if first is None else first
            length = float(frame.duration * frame.time_base) if frame.duration and frame.time_base else usual
            turns = round(frame.rotation / 90) % 4
            picture = frame.to_ndarray(format="rgb24")
            yield second - first, length, np.ascontiguousarray(np.rot90(picture, turns))
    except (av.FFmpegError, ValueError) as error:
        raise MediaUnreadable(name, f"has pictures that cannot be decoded ({reason(error)})") from None


class _Grid:
    """Frames on an even time grid, written into one array that grows by doubling; untouched pages cost no memory."""

    def __init__(
        self, *, fps: float, start_seconds: float, max_frames: int | None, size: tuple[int, int] | None
    ) -> None:
        self._fps = fps
        self._size = size
        self._start_seconds = start_seconds
        self._limit = max_frames
        self._count = 0
        self._frames: FramesU8 | None = None
        self._held: FramesU8 | None = None

    @property
    def full(self) -> bool:
        return self._limit is not None and self._count >= self._limit

    @property
    def frames(self) -> FramesU8 | None:
        return None if self._frames is None or not self._count else self._frames[: self._count]

    def slot(self, second: float) -> int:
        # Timestamps are rounded to a time base, so a tie may fall a hair short: 1e-6 frames is far below any base.
        return math.floor((second - self._start_seconds) * self._fps + 0.5 + 1e-6)

    def advance(self, second: float, picture: FramesU8 | None) -> None:
        """The frame held so far fills the slots before this second; from there on `picture` is held."""
        stop = self.slot(second) if self._limit is None else min(self.slot(second), self._limit)
        if self._held is not None and stop > self._count:
            # Only here, for most frames before the grid's start fill no slot and are not worth resizing.
            fitted = fitted_frames(self._held[None], self._size)[0]
            self._room(stop, fitted.shape)[self._count : stop] = fitted
            self._count = stop
        self._held = picture

    def _room(self, count: int, shape: tuple[int, ...]) -> FramesU8:
        if self._frames is None or len(self._frames) < count:
            grown = np.empty((self._limit or max(64, 2 * count), *shape), np.uint8)
            if self._frames is not None:
                grown[: self._count] = self._frames[: self._count]
            self._frames = grown
        return self._frames


def _fill_grid(grid: _Grid, shown: Iterator[tuple[float, float, FramesU8]]) -> None:
    end = 0.0
    for second, length, picture in shown:
        grid.advance(second, picture)
        if grid.full:
            return
        end = second + length
    grid.advance(end, None)


def _sound(container: Any, *, name: str, start_seconds: float, max_seconds: float | None) -> Sound | None:
    import av

    stream = first_stream(container, "audio")
    rate = stream.codec_context.sample_rate
    layout = "mono" if stream.codec_context.channels == 1 else "stereo"
    resampler = av.AudioResampler(format="fltp", layout=layout, rate=rate)
    first = round(start_seconds * rate)
    last = None if max_seconds is None else first + math.floor(max_seconds * rate)
    parts: list[WaveF32] = []
    try:
        for frame in itertools.chain(_decoded(container, stream, last), (None,)):
            parts.extend(piece.to_ndarray() for piece in resampler.resample(frame))
    except (av.FFmpegError, ValueError) as error:
        raise MediaUnreadable(name, f"has sound that cannot be decoded ({reason(error)})") from None
    if not parts:
        return None
    wave = np.concatenate(parts, axis=1)[:, first:last]
    if not np.isfinite(wave).all():
        raise MediaUnreadable(name, "has sound with values that are no numbers")
    return Sound(wave=np.ascontiguousarray(wave), sample_rate_hz=rate) if wave.shape[1] else None


def _decoded(container: Any, stream: Any, last: int | None) -> Iterator[Any]:
    samples = 0
    for frame in container.decode(stream):
        yield frame
        samples += frame.samples
        if last is not None and samples >= last:
            return
