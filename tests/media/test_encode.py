"""The clip in the file is the clip that was made: colours, times, sound, and nothing half-written."""

from __future__ import annotations

import errno
import resource
import tracemalloc
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from omnireel.errors import EngineError, InvalidRequest
from omnireel.media.decode import read_clip
from omnireel.media.encode import ENCODERS, has_encoder, write_clip
from omnireel.request import MediaOutput

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (200, 120, 40), (128, 128, 128), (255, 255, 255), (0, 0, 0)]


RATES = [(44_100, 44_100), (22_050, 22_050), (8_000, 8_000), (12_345, 12_000), (50_000, 48_000), (192_000, 96_000)]


def clip(
    num_frames: int = 24, *, fps: float = 24.0, samples: int | None = None, rate: int = 32_000, channels: int = 2
) -> MediaOutput:
    frames = np.stack([np.full((32, 48, 3), COLOURS[k % 7], np.uint8) for k in range(num_frames)])
    if samples is None:
        return MediaOutput(frames=frames, fps=fps)
    wave = np.zeros((channels, samples), np.float32)
    return MediaOutput(frames=frames, fps=fps, wave=wave, sample_rate_hz=rate)


def ends(path: Path) -> tuple[float, float]:
    with av.open(str(path)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert video.start_time in (0, None)
        assert audio.start_time in (0, None)
        return float(video.duration * video.time_base), float(audio.duration * audio.time_base)


def test_colours_come_back(tmp_path):
    write_clip(clip(), tmp_path / "a.mp4")
    shown = read_clip(tmp_path / "a.mp4", name="a", fps=24).frames[:7, 16, 24].astype(int)
    assert np.abs(shown - np.array(COLOURS)).max() <= 2


@pytest.mark.parametrize("colour", COLOURS)
def test_samples_in_the_file_are_those_of_bt709(tmp_path, colour):
    # Against the standard's own formula: a reader and a writer that are wrong alike would agree.
    write_clip(MediaOutput(frames=np.full((2, 32, 32, 3), colour, np.uint8), fps=24.0), tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as container:
        planes = next(container.decode(video=0)).to_ndarray()
    red, green, blue = (level / 255 for level in colour)
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    expected = (16 + 219 * luma, 128 + 224 * (blue - luma) / 1.8556, 128 + 224 * (red - luma) / 1.5748)
    assert (planes[16, 16], planes[36, 4], planes[44, 4]) == pytest.approx(expected, abs=1.0)


def test_streams_are_what_players_expect(tmp_path):
    write_clip(clip(107, samples=142_400), tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        context = video.codec_context
        assert (context.name, context.pix_fmt, video.average_rate, video.frames) == ("h264", "yuv420p", 24, 107)
        assert (context.color_primaries, context.color_trc, context.colorspace, context.color_range) == (1, 1, 1, 1)
        assert (audio.codec_context.name, audio.codec_context.layout.name, audio.rate) == ("aac", "stereo", 32_000)
        stamps = [frame.pts * frame.time_base for frame in container.decode(video)]
    assert stamps == [Fraction(k, 24) for k in range(107)]


@pytest.mark.parametrize(
    ("fps", "exact"), [(24.0, 24), (24000 / 1001, Fraction(24000, 1001)), (23.976, Fraction(2997, 125)), (12.5, 12.5)]
)
def test_every_rate_and_every_time_is_exact(tmp_path, fps, exact):
    write_clip(clip(37, fps=fps), tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as container:
        video = container.streams.video[0]
        assert video.average_rate == exact
        assert video.duration is not None
        assert video.duration * video.time_base == 37 / Fraction(exact)
        assert [frame.pts * frame.time_base for frame in container.decode(video)] == [
            k / Fraction(exact) for k in range(37)
        ]


def test_the_index_is_at_the_front(tmp_path):
    write_clip(clip(), tmp_path / "a.mp4")
    data = (tmp_path / "a.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


@pytest.mark.parametrize("rate", [32_000, 44_100, 16_000, 37_800])
def test_clicks_are_heard_within_a_millisecond_of_where_they_were_made(tmp_path, rate):
    output = clip(72, samples=3 * rate, rate=rate)
    assert output.wave is not None
    for second in (0.5, 1.5, 2.9):
        output.wave[:, round(second * rate)] = 0.9
    write_clip(output, tmp_path / "a.mp4")
    sound = read_clip(tmp_path / "a.mp4", name="a", fps=24).sound
    assert sound is not None
    for second in (0.5, 1.5, 2.9):
        first = round((second - 0.05) * sound.sample_rate_hz)
        heard = first + int(np.abs(sound.wave[0, first : first + sound.sample_rate_hz // 10]).argmax())
        assert heard / sound.sample_rate_hz == pytest.approx(second, abs=0.001)


@pytest.mark.parametrize("samples", [1, 800 * 178, 150_000, 130_000, 300_000])
def test_sound_and_picture_end_within_one_frame(tmp_path, samples):
    write_clip(clip(107, samples=samples), tmp_path / "a.mp4")
    picture, sound = ends(tmp_path / "a.mp4")
    assert abs(picture - sound) <= 1 / 24


def test_samples_within_a_frame_of_the_end_are_kept(tmp_path):
    write_clip(clip(124, samples=800 * 207), tmp_path / "a.mp4")
    assert ends(tmp_path / "a.mp4")[1] >= 800 * 207 / 32_000


@pytest.mark.parametrize(("rate", "written"), RATES)
def test_rates_that_aac_lacks_go_to_the_nearest_one(tmp_path, rate, written):
    write_clip(clip(24, samples=rate, rate=rate), tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert container.streams.audio[0].rate == written
    assert abs(ends(tmp_path / "a.mp4")[1] - 1.0) <= 1 / 24


def test_a_resampled_tone_keeps_pitch_and_level(tmp_path):
    rate = 12_345
    output = clip(48, samples=2 * rate, rate=rate)
    assert output.wave is not None
    output.wave[:] = 0.5 * np.sin(2 * np.pi * 440 * np.arange(2 * rate) / rate)
    write_clip(output, tmp_path / "a.mp4")
    sound = read_clip(tmp_path / "a.mp4", name="a", fps=24).sound
    assert sound is not None
    middle = sound.wave[0, 6_000:18_000]
    assert np.abs(np.fft.rfft(middle)).argmax() == 440
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.05)


def test_mono_is_heard_in_both_ears(tmp_path):
    output = clip(24, samples=32_000, channels=1)
    assert output.wave is not None
    output.wave[0] = 0.5 * np.sin(np.arange(32_000) / 10)
    write_clip(output, tmp_path / "a.mp4")
    sound = read_clip(tmp_path / "a.mp4", name="a", fps=24).sound
    assert sound is not None
    middle = sound.wave[:, 4_000:28_000]
    assert np.abs(middle[0] - middle[1]).max() < 0.01
    assert middle[0].std() > 0.3


def test_equal_clips_give_equal_bytes(tmp_path):
    first = write_clip(clip(24, samples=32_000), tmp_path / "a.mp4")
    assert write_clip(clip(24, samples=32_000), tmp_path / "b.mp4").digest == first.digest
    assert first.size_bytes == (tmp_path / "a.mp4").stat().st_size


@pytest.mark.parametrize("shape", [(2, 31, 48, 3), (2, 32, 47, 3), (2, 32, 48, 4), (0, 32, 48, 3), (32, 48, 3)])
def test_frames_that_h264_cannot_take_are_refused(tmp_path, shape):
    with pytest.raises(InvalidRequest):
        write_clip(MediaOutput(frames=np.zeros(shape, np.uint8), fps=24.0), tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())


def test_more_than_two_channels_are_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="channels"):
        write_clip(clip(24, samples=32_000, channels=3), tmp_path / "a.mp4")


def test_a_wave_of_whole_numbers_is_refused_not_distorted(tmp_path):
    output = MediaOutput(frames=clip(2).frames, fps=24.0, wave=np.zeros((2, 9), np.int16), sample_rate_hz=32_000)
    with pytest.raises(InvalidRequest, match="float"):
        write_clip(output, tmp_path / "a.mp4")


def test_a_wave_without_a_rate_is_refused_not_dropped(tmp_path):
    output = MediaOutput(frames=clip(2).frames, fps=24.0, wave=np.zeros((2, 100), np.float32))
    with pytest.raises(InvalidRequest, match="rate"):
        write_clip(output, tmp_path / "a.mp4")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_sound_that_is_no_number_is_told_as_such(tmp_path, value):
    output = clip(24, samples=32_000)
    assert output.wave is not None
    output.wave[0, 7] = value
    with pytest.raises(EngineError, match="not finite"):
        write_clip(output, tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fps", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_a_rate_that_no_clip_can_have_is_refused(tmp_path, fps):
    with pytest.raises(InvalidRequest, match="fps"):
        write_clip(clip(2, fps=fps), tmp_path / "a.mp4")


@pytest.mark.parametrize("name", ["a:b/a.mp4", "a:b.mp4", "http:a.mp4", "a%03d.mp4", "-a.mp4", "a b'\"\n.mp4"])
def test_a_name_is_never_taken_for_anything_but_a_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(exist_ok=True)
    write_clip(clip(2), Path(name))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]
    assert len(read_clip(Path(name), name="a", fps=24).frames) == 2


def test_an_existing_file_is_replaced(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"old")
    write_clip(clip(2), tmp_path / "a.mp4")
    assert len(read_clip(tmp_path / "a.mp4", name="a", fps=24).frames) == 2


def test_frames_are_converted_one_at_a_time(tmp_path):
    output = MediaOutput(frames=np.zeros((40, 128, 128, 3), np.uint8), fps=24.0)
    assert output.frames is not None
    write_clip(output, tmp_path / "a.mp4")
    tracemalloc.start()
    write_clip(output, tmp_path / "a.mp4")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * output.frames[0].nbytes


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt()])
def test_stopping_in_the_middle_leaves_nothing(tmp_path, error):
    calls = iter([None] * 5)

    def check() -> None:
        if next(calls, error) is not None:
            raise error

    with pytest.raises(type(error)):
        write_clip(clip(), tmp_path / "a.mp4", check=check)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing_bytes", [1, 3_000])
def test_a_disk_that_fills_up_is_a_clear_error_up_to_the_last_byte(tmp_path, missing_bytes):
    output = MediaOutput(frames=np.random.default_rng(0).integers(0, 255, (6, 64, 64, 3), np.uint8), fps=24.0)
    size_bytes = write_clip(output, tmp_path / "a.mp4").size_bytes
    (tmp_path / "a.mp4").unlink()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes - missing_bytes, old[1]))
    try:
        with pytest.raises(InvalidRequest, match="File too large"):
            write_clip(output, tmp_path / "a.mp4")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert not list(tmp_path.iterdir())


def test_no_space_left_is_a_clear_error(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("omnireel.media.encode._mux", full)
    with pytest.raises(InvalidRequest, match="No space left"):
        write_clip(clip(), tmp_path / "a.mp4")


def test_the_encoders_that_are_needed_are_there():
    assert all(has_encoder(name) for name in ENCODERS)
    assert not has_encoder("libnothing")
