"""Real encoded files, made here, come back as the arrays they were made from."""

from __future__ import annotations

import io
import struct
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from omnireel.errors import MediaUnreadable
from omnireel.media.decode import read_clip, read_picture, read_sound

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255), (255, 0, 255)]


def solid(colour: tuple[int, int, int], *, width: int = 64, height: int = 32) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def write_video(
    path: Path,
    *,
    codec: str = "libx264",
    pts: list[int] | None = None,
    fps: int = 24,
    rotation: int = 0,
    sound_hz: int | None = None,
    frames: list[np.ndarray] | None = None,
) -> Path:
    pictures = frames if frames is not None else [solid(COLOURS[k % 6]) for k in range(6)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.time_base = Fraction(1, fps)
        if rotation:
            stream.set_display_rotation(rotation)
        audio = None
        if sound_hz is not None:
            audio = container.add_stream("aac" if path.suffix == ".mp4" else "libopus", rate=sound_hz, layout="stereo")
        for k, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = pts[k] if pts else k
            frame.time_base = Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if audio is not None:
            assert sound_hz is not None
            wave = np.zeros((2, sound_hz), np.float32)
            wave[0] = 0.5 * np.sin(2 * np.pi * 440 * np.arange(sound_hz) / sound_hz)
            block = av.AudioFrame.from_ndarray(wave, format="fltp", layout="stereo")
            block.sample_rate = sound_hz
            container.mux(audio.encode(block))
            container.mux(audio.encode(None))
    return path


def write_sound(path: Path, wave: np.ndarray, rate: int, *, codec: str, layout: str) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        resampler = av.AudioResampler(format=stream.codec_context.format or "fltp", layout=layout, rate=rate)
        block = av.AudioFrame.from_ndarray(wave.astype(np.float32), format="fltp", layout=layout)
        block.sample_rate = rate
        for piece in resampler.resample(block):
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return path


def hue(picture: np.ndarray) -> tuple[bool, ...]:
    return tuple(bool(level > 127) for level in picture.reshape(-1, 3).mean(axis=0))


def hues(colours: list[tuple[int, int, int]]) -> list[tuple[bool, ...]]:
    return [tuple(level > 127 for level in colour) for colour in colours]


@pytest.mark.parametrize(
    ("codec", "suffix"), [("libx264", ".mp4"), ("libx265", ".mp4"), ("libvpx-vp9", ".webm"), ("libsvtav1", ".mp4")]
)
def test_a_steady_clip_comes_through_frame_for_frame(tmp_path, codec, suffix):
    clip = read_clip(write_video(tmp_path / f"clip{suffix}", codec=codec), name="clip", fps=24)
    assert clip.frames.shape == (6, 32, 64, 3)
    assert [hue(frame) for frame in clip.frames] == hues(COLOURS)


def test_frames_of_uneven_length_are_repeated_and_dropped_by_their_timestamps(tmp_path):
    path = write_video(tmp_path / "clip.mp4", fps=120, pts=[0, 10, 12, 15, 30, 35])
    clip = read_clip(path, name="clip", fps=24)
    # Slots start at 0, 2, 2, 3, 6 and 7, and the last frame ends before slot 8.
    lengths = [2, 0, 1, 3, 1, 0]
    expected = [h for h, length in zip(hues(COLOURS), lengths, strict=True) for _ in range(length)]
    assert [hue(frame) for frame in clip.frames] == expected


def test_a_12_fps_clip_doubles_and_a_48_fps_clip_halves(tmp_path):
    slow = read_clip(write_video(tmp_path / "slow.mp4", fps=12), name="slow", fps=24)
    fast = read_clip(write_video(tmp_path / "fast.mp4", fps=48), name="fast", fps=24)
    assert [hue(frame) for frame in slow.frames] == [h for h in hues(COLOURS) for _ in range(2)]
    assert len(fast.frames) == 3


def test_a_rotated_clip_is_shown_upright(tmp_path):
    half = solid((0, 0, 0))
    half[:, 32:] = 255
    upright = read_clip(write_video(tmp_path / "a.mp4", frames=[half] * 3), name="a", fps=24).frames
    turned = read_clip(write_video(tmp_path / "b.mp4", frames=[half] * 3, rotation=90), name="b", fps=24).frames
    assert turned.shape[1:3] == (64, 32)
    assert np.abs(np.rot90(upright[0]).astype(int) - turned[0].astype(int)).max() <= 2


def test_the_grid_starts_and_ends_where_it_is_told(tmp_path):
    clip = read_clip(write_video(tmp_path / "a.mp4"), name="a", fps=24, start_seconds=2 / 24, max_frames=3)
    assert [hue(frame) for frame in clip.frames] == hues(COLOURS)[2:5]


def test_every_frame_is_resized(tmp_path):
    clip = read_clip(write_video(tmp_path / "a.mp4"), name="a", fps=24, size=(32, 48))
    assert clip.frames.shape == (6, 48, 32, 3)


def test_the_soundtrack_keeps_its_rate_and_a_silent_clip_has_none(tmp_path):
    sound = read_clip(write_video(tmp_path / "a.mp4", sound_hz=44100), name="a", fps=24).sound
    assert sound is not None
    assert sound.sample_rate_hz == 44100
    middle = sound.wave[0, 3000:9000]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.05)
    assert read_clip(write_video(tmp_path / "b.mp4"), name="b", fps=24).sound is None


def test_sound_is_cut_to_the_frames_that_were_asked_for(tmp_path):
    clip = read_clip(write_video(tmp_path / "a.mp4", sound_hz=48000), name="a", fps=24, max_frames=6)
    assert clip.sound is not None
    assert clip.sound.wave.shape == (2, 12000)


@pytest.mark.parametrize(
    ("codec", "suffix", "rate"),
    [
        ("pcm_s16le", ".wav", 8000),
        ("pcm_s24le", ".wav", 96000),
        ("flac", ".flac", 44100),
        ("libmp3lame", ".mp3", 44100),
        ("aac", ".m4a", 32000),
        ("libopus", ".ogg", 48000),
    ],
)
@pytest.mark.parametrize("layout", ["mono", "stereo"])
def test_a_recording_keeps_rate_channels_and_level(tmp_path, codec, suffix, rate, layout):
    channels = 1 if layout == "mono" else 2
    tone = np.tile(0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate), (channels, 1))
    sound = read_sound(write_sound(tmp_path / f"s{suffix}", tone, rate, codec=codec, layout=layout), name="s")
    assert sound.sample_rate_hz == rate
    assert sound.wave.shape[0] == channels
    assert sound.wave.shape[1] == pytest.approx(rate, rel=0.06)
    assert np.sqrt(np.mean(sound.wave[:, rate // 4 : rate // 2] ** 2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.05)


def test_surround_is_mixed_down_to_stereo(tmp_path):
    tone = np.zeros((6, 48000))
    tone[0] = 0.5
    path = write_sound(tmp_path / "s.flac", tone, 48000, codec="flac", layout="5.1")
    wave = read_sound(path, name="s").wave
    assert wave.shape[0] == 2
    assert abs(wave[0]).mean() > 10 * abs(wave[1]).mean()


def test_a_recording_is_cut_at_a_whole_sample(tmp_path):
    path = write_sound(tmp_path / "s.wav", np.zeros((1, 8000)), 8000, codec="pcm_s16le", layout="mono")
    assert read_sound(path, name="s", max_seconds=0.33333).wave.shape == (1, 2666)


def saved(picture: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def test_exif_rotation_is_applied():
    picture = Image.fromarray(solid((250, 10, 10), width=8, height=4))
    exif = picture.getexif()
    exif[0x0112] = 6
    assert read_picture(saved(picture, "JPEG", exif=exif), name="p").shape == (1, 8, 4, 3)


def test_cmyk_becomes_rgb():
    data = saved(Image.fromarray(solid((255, 0, 0))).convert("CMYK"), "JPEG")
    assert hue(read_picture(data, name="p")[0]) == (True, False, False)


def test_sixteen_bit_grey_is_scaled_and_not_clipped():
    levels = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    frame = read_picture(saved(Image.fromarray(levels), "PNG"), name="p")[0]
    assert np.abs(frame[..., 0].astype(float) - levels / 257).max() <= 1


def test_transparency_is_shown_over_white():
    layer = np.zeros((4, 4, 4), np.uint8)
    layer[:2] = (10, 20, 30, 255)
    frame = read_picture(saved(Image.fromarray(layer), "PNG"), name="p")[0]
    assert frame[0, 0].tolist() == [10, 20, 30]
    assert frame[3, 3].tolist() == [255, 255, 255]


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_is_taken(form):
    pictures = [Image.fromarray(solid(colour)) for colour in COLOURS[:3]]
    data = saved(pictures[0], form, save_all=True, append_images=pictures[1:])
    assert hue(read_picture(data, name="p")[0]) == hues(COLOURS)[0]


def test_stretch_scales_axes_apart_and_cover_crops_the_middle():
    picture = solid((0, 0, 0), width=90, height=30)
    picture[:, 30:60] = 255
    data = saved(Image.fromarray(picture), "PNG")
    assert read_picture(data, name="p", size=(30, 30))[0, 15, 2].max() < 30
    assert read_picture(data, name="p", size=(30, 30), is_cover=True)[0, 15, 2].min() > 225


@pytest.mark.parametrize("data", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_what_is_no_picture_is_refused(data):
    with pytest.raises(MediaUnreadable, match="input_reference"):
        read_picture(data, name="input_reference")


def test_a_cut_short_picture_is_refused():
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = saved(Image.fromarray(noise), "JPEG")
    with pytest.raises(MediaUnreadable):
        read_picture(data[: len(data) // 2], name="p")


def test_a_pixel_bomb_is_refused_before_it_is_unpacked():
    data = bytearray(saved(Image.fromarray(solid((1, 2, 3))), "PNG"))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
    with pytest.raises(MediaUnreadable):
        read_picture(bytes(data), name="p")


def test_a_recording_is_no_clip_and_a_silent_clip_no_recording(tmp_path):
    sound = write_sound(tmp_path / "s.wav", np.zeros((1, 800)), 8000, codec="pcm_s16le", layout="mono")
    with pytest.raises(MediaUnreadable, match="no pictures"):
        read_clip(sound, name="s", fps=24)
    with pytest.raises(MediaUnreadable, match="no sound"):
        read_sound(write_video(tmp_path / "v.mp4"), name="v")


def test_errors_do_not_tell_paths(tmp_path):
    (tmp_path / "secret.mp4").write_bytes(b"junk" * 100)
    with pytest.raises(MediaUnreadable) as raised:
        read_clip(tmp_path / "secret.mp4", name="video_reference", fps=24)
    assert "secret" not in str(raised.value)


def test_heic_pictures_are_read():
    pillow_heif = pytest.importorskip("pillow_heif", reason="HEIC needs the optional package pillow-heif")
    pillow_heif.register_heif_opener()
    frame = read_picture(saved(Image.fromarray(solid((250, 10, 10))), "HEIF", quality=95), name="p")[0]
    assert hue(frame) == (True, False, False)


def test_a_frame_that_is_held_over_a_gap_before_the_start_is_resized_too(tmp_path):
    path = write_video(tmp_path / "gap.mp4", pts=[0, 1, 2, 96, 97, 98])
    clip = read_clip(path, name="clip", fps=24.0, size=(32, 32), start_seconds=2.0)
    assert clip.frames.shape == (51, 32, 32, 3)
    assert np.abs(clip.frames[0].astype(int) - COLOURS[2]).max() < 12
    assert np.abs(clip.frames[-1].astype(int) - COLOURS[5]).max() < 12


def test_sound_that_is_no_numbers_is_refused(tmp_path):
    data = np.full(64, np.nan, "<f4").tobytes()
    form = struct.pack("<IHHIIHH", 16, 3, 1, 8000, 32000, 4, 32)
    path = tmp_path / "nan.wav"
    path.write_bytes(
        b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + form + b"data" + struct.pack("<I", len(data)) + data
    )
    with pytest.raises(MediaUnreadable, match="no numbers"):
        read_sound(path, name="song")
