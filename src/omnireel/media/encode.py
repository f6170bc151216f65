"""A clip as MP4: H.264 in BT.709 colours and AAC stereo, both starting at zero, the index at the front.

Frames are converted and encoded one at a time. The same clip gives the same bytes on one machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from omnireel.errors import EngineError, InvalidRequest
from omnireel.media.aside import check_writable, written_aside
from omnireel.media.digest import file_digest
from omnireel.media.recipe import COMMENT, recipe_to_json
from omnireel.request import Encoded

if TYPE_CHECKING:
    from pathlib import Path

    from omnireel.request import FramesU8, MediaOutput, Recipe, WaveF32

__all__ = ["ENCODERS", "check_writable", "has_encoder", "write_clip"]

MIME = "video/mp4"
CRF = "18"
PRESET = "veryfast"
"""On 24 synthetic grainy frames of 1344x768 at this CRF, as multiples of this preset's processor time and bytes: superfast
0.67 and 3.6, faster 1.65 and 0.90, medium 2.3 and 1.04. Luma PSNR: superfast 1.9 dB above, the others within 0.3 dB."""

AAC_BITS_PER_SECOND = 192_000
AAC_RATES_HZ = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000)

_BT709 = 1
_LIMITED_RANGE = 1
"""Code points of ISO/IEC 23091-2 for primaries, transfer and matrix, and FFmpeg's number of the 16-235 range."""

MIN_FPS, MAX_FPS = 0.1, 1000.0
"""What fits the time bases of the container with room to spare."""

ENCODERS = ("libx264", "aac")
"""What PyAV must bring; its wheels do, a PyAV built from source may not."""


def has_encoder(name: str) -> bool:
    """Whether PyAV can encode with the codec that FFmpeg calls so."""
    import av

    try:
        av.Codec(name, "w")
    except av.codec.codec.UnknownCodecError:
        return False
    return True


def _wanted() -> None:
    pass


def write_clip(
    output: MediaOutput, path: Path, *, recipe: Recipe | None = None, check: Callable[[], None] = _wanted
) -> Encoded:
    """Writes the clip; the file appears whole or not at all, also when the process is interrupted.

    Sound that ends more than one frame before or after the picture is padded with silence or cut to the picture's end;
    mono becomes both channels; a rate that AAC lacks is resampled to the nearest that it has.

    Args:
        output: frames uint8 [T,H,W,3] with an even height and width, and perhaps a wave float32 [C,N].
        path: where to; an existing file is replaced.
        recipe: goes into the file's comment; None for none.
        check: called before each frame; whatever it raises ends the writing.

    Raises:
        InvalidRequest: the path cannot be written, or the frames or the wave have no shape or rate that the codecs take.
        EngineError: the wave holds NaN or infinity.
    """
    start = time.perf_counter()
    frames, fps = _checked(output)
    sound = _sound(output, len(frames) / fps)
    with written_aside(path, suffixes=(".mp4",)) as aside:
        _mux(aside, frames, fps=fps, sound=sound, recipe=recipe, check=check)
        data = np.memmap(aside, mode="r")
        size_bytes, digest = len(data), file_digest(data.data)
        del data
    return Encoded(path=path, mime=MIME, size_bytes=size_bytes, digest=digest, seconds=time.perf_counter() - start)


def _checked(output: MediaOutput) -> tuple[FramesU8, Fraction]:
    frames = output.frames
    if frames is None or output.fps is None:
        raise InvalidRequest("output_type", "latent", "only frames can be written to a file")
    if frames.ndim != 4 or frames.shape[3] != 3 or not len(frames) or frames.dtype != np.uint8:
        raise InvalidRequest(
            "frames", f"{frames.dtype} {frames.shape}", "they must be uint8 (frames, height, width, 3)"
        )
    height, width = frames.shape[1:3]
    if height % 2 or width % 2 or not height or not width:
        raise InvalidRequest("size", f"{width}x{height}", "height and width must be even for H.264 in 4:2:0")
    if not MIN_FPS <= output.fps <= MAX_FPS:
        raise InvalidRequest("fps", output.fps, f"it must be from {MIN_FPS:g} to {MAX_FPS:g}")
    return frames, Fraction(output.fps).limit_denominator(1001)


def _sound(output: MediaOutput, seconds: Fraction) -> tuple[WaveF32, int] | None:
    """The wave in stereo with an end within one frame of the picture's, and its rate."""
    wave, rate = output.wave, output.sample_rate_hz
    if wave is None:
        return None
    if wave.dtype.kind != "f" or wave.ndim != 2 or wave.shape[0] not in (1, 2):
        raise InvalidRequest("audio", f"{wave.dtype} {wave.shape}", "it must be float (1 or 2 channels, samples)")
    if not rate or rate < 0:
        raise InvalidRequest("audio", rate, "its rate in samples a second must be given")
    if not np.isfinite(wave).all():
        raise EngineError(
            "the sound holds values that are not finite",
            hint="look at the weights, the dtype and the attention backend",
        )
    wanted = round(seconds * rate)
    frame = rate / (output.fps or 1.0)
    # AAC adds up to one block of 1024 samples at the end, which counts as sound where a decoder ignores the edit list.
    if wave.shape[1] > wanted + max(0.0, frame - 1024):
        wave = wave[:, :wanted]
    elif wave.shape[1] < wanted - frame:
        wave = np.pad(wave, ((0, 0), (0, wanted - wave.shape[1])))
    return np.broadcast_to(wave, (2, wave.shape[1])), rate


def _mux(
    path: Path,
    frames: FramesU8,
    *,
    fps: Fraction,
    sound: tuple[WaveF32, int] | None,
    recipe: Recipe | None,
    check: Callable[[], None],
) -> None:
    import av

    # A relative name such as "a:b.mp4" would be taken for a protocol.
    with av.open(str(path.absolute()), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        if recipe is not None:
            container.metadata[COMMENT] = recipe_to_json(recipe)
        video = _video_stream(container, frames, fps)
        audio = None if sound is None else _audio_stream(container, sound[1])
        blocks = iter(()) if sound is None else _audio_blocks(*sound)
        heard = 0.0
        for index, frame in enumerate(frames):
            check()
            container.mux(video.encode(_video_frame(frame, index, fps)))
            # The sound up to the end of this frame, so that packets lie in the order they are played.
            while audio is not None and heard < float((index + 1) / fps):
                block = next(blocks, None)
                if block is None:
                    break
                heard += block.samples / block.sample_rate
                container.mux(audio.encode(block))
        if audio is not None:
            for block in blocks:
                container.mux(audio.encode(block))
            container.mux(audio.encode(None))
        container.mux(video.encode(None))


def _video_stream(container: Any, frames: FramesU8, fps: Fraction) -> Any:
    stream = container.add_stream("libx264", rate=fps, options={"crf": CRF, "preset": PRESET})
    stream.height, stream.width = frames.shape[1:3]
    stream.pix_fmt = "yuv420p"
    context = stream.codec_context
    context.time_base = 1 / fps
    context.color_primaries = context.color_trc = context.colorspace = _BT709
    context.color_range = _LIMITED_RANGE
    return stream


def _video_frame(frame: FramesU8, index: int, fps: Fraction) -> Any:
    import av
    from av.video.reformatter import ColorRange, Colorspace

    picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
    # Without being told, swscale converts by BT.601, and colours shift on every player.
    converted = picture.reformat(
        format="yuv420p",
        src_colorspace=Colorspace.ITU709,
        dst_colorspace=Colorspace.ITU709,
        src_color_range=ColorRange.JPEG,
        dst_color_range=ColorRange.MPEG,
    )
    converted.pts = index
    converted.time_base = 1 / fps
    return converted


def _audio_stream(container: Any, rate: int) -> Any:
    nearest = min(AAC_RATES_HZ, key=lambda known: abs(known - rate))
    return container.add_stream("aac", rate=nearest, layout="stereo", options={"b": str(AAC_BITS_PER_SECOND)})


def _audio_blocks(wave: WaveF32, rate: int) -> Iterator[Any]:
    """Blocks of float32 [2,1024], stamped from zero."""
    import av

    for first in range(0, wave.shape[1], 1024):
        part = np.ascontiguousarray(wave[:, first : first + 1024], dtype=np.float32)
        block = av.AudioFrame.from_ndarray(part, format="fltp", layout="stereo")
        block.sample_rate = rate
        block.pts = first
        block.time_base = Fraction(1, rate)
        yield block
