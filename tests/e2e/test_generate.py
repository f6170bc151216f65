"""The installed command as a person runs it: own process, own home, own folder, no network."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

import omnireel.errors
from omnireel.media.recipe import read_recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = Path(sys.executable).with_name("omnireel")
SLOW_TOY = ("generate", "a kite", "--model", "toy", "--extra-args", '{"step_seconds": 0.5}', "-o", "kite.mp4")
BT709, LIMITED_RANGE = 1, 1


@dataclass(frozen=True)
class Place:
    """A temporary home and working folder."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[str]:
        command = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "omnireel.cli"]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([*command, *argv], cwd=self.folder, env=self.environment, text=True, **streams)

    def run(self, *argv: str, **options: Any) -> tuple[int, str, str]:
        process = self.start(*argv, **options)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err

    def made(self, *argv: str) -> dict[str, Any]:
        """What `--json` says of a command that must succeed."""
        code, out, err = self.run(*argv, "--json")
        assert code == 0, err
        return dict(json.loads(out))


def new_place(folder: Path) -> Place:
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    environment = {"HOME": str(home), "PATH": os.defpath, "TMPDIR": str(folder)}
    # Whoever asks the network gets an error at once.
    environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    if not SCRIPT.exists():
        environment["PYTHONPATH"] = str(Path(omnireel.errors.__file__).parents[1])
    return Place(work, environment)


@pytest.fixture
def place(tmp_path):
    return new_place(tmp_path)


@pytest.fixture(scope="module", params=["toy", "mini-h3"])
def clip(request, tmp_path_factory):
    """A clip of 107 frames, where it was made and what was said of it."""
    made_in = new_place(tmp_path_factory.mktemp(request.param))
    said = made_in.made(
        "generate", "a red ball", "--model", request.param, "--num-frames", "107", "--seed", "3", "-o", "ball.mp4"
    )
    return made_in, said


def test_the_clip_is_h264_of_107_frames_at_24_a_second(clip):
    made_in, said = clip
    with av.open(str(made_in.folder / "ball.mp4")) as container:
        video = container.streams.video[0]
        assert video.codec_context.name == "h264"
        assert video.codec_context.pix_fmt == "yuv420p"
        assert video.average_rate == 24
        assert f"{video.width}x{video.height}" == said["size"]
        assert sum(1 for _ in container.decode(video)) == said["num_frames"] == 107


def test_the_colours_are_tagged_as_bt709(clip):
    made_in, _ = clip
    with av.open(str(made_in.folder / "ball.mp4")) as container:
        context = container.streams.video[0].codec_context
        tags = (context.color_primaries, context.color_trc, context.colorspace, context.color_range)
        assert tags == (BT709, BT709, BT709, LIMITED_RANGE)


def test_the_sound_is_stereo_aac_and_ends_with_the_picture(clip):
    made_in, said = clip
    with av.open(str(made_in.folder / "ball.mp4")) as container:
        audio = container.streams.audio[0]
        assert (audio.codec_context.name, audio.codec_context.channels) == ("aac", 2)
        assert audio.codec_context.sample_rate == said["sampling_rate"] == 32_000
        frames = list(container.decode(audio))
        assert frames[0].pts * frames[0].time_base == 0
        seconds = sum(frame.samples for frame in frames) / audio.codec_context.sample_rate
        assert abs(seconds - 107 / 24) <= 1 / 24


def test_the_index_is_at_the_front(clip):
    made_in, _ = clip
    content = (made_in.folder / "ball.mp4").read_bytes()
    assert 0 < content.index(b"moov") < content.index(b"mdat")


def test_the_recipe_in_the_file_is_the_one_that_was_told(clip):
    made_in, said = clip
    recipe = read_recipe(made_in.folder / "ball.mp4")
    assert recipe.prompt == "a red ball"
    assert recipe.sampling["seed"] == 3
    assert recipe.frames_digest == said["recipe"]["frames_digest"]


def test_nothing_else_is_left_behind(clip):
    made_in, _ = clip
    assert not list(made_in.folder.glob(".*"))
    assert not list(Path(made_in.environment["HOME"]).iterdir())


def test_reproduce_makes_the_same_frames_and_sound(clip):
    made_in, _ = clip
    again = made_in.made("reproduce", "ball.mp4", "-o", "again.mp4")
    assert again["is_same_frames"]
    assert again["is_same_sound"]
    assert np.array_equal(decoded(made_in.folder / "ball.mp4"), decoded(made_in.folder / "again.mp4"))


def test_another_seed_makes_other_frames(clip):
    made_in, said = clip
    model = said["recipe"]["model"]
    other = made_in.made(
        "generate", "a red ball", "--model", model, "--num-frames", "107", "--seed", "4", "-o", "4.mp4"
    )
    assert other["recipe"]["frames_digest"] != said["recipe"]["frames_digest"]


def decoded(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def test_the_default_model_works_without_a_word_about_it(place):
    profiled = "--enable-diffusion-pipeline-profiler"
    made = place.made("generate", "a red ball", "--num-frames", "96", "--num-inference-steps", "2", profiled)
    within = {"encode.text_encoder", "encode.text_encoder.tokenizer", "decode.video_vae", "decode.audio_vae"}
    assert made["profile"].keys() == {"encode", "prepare", "denoise", "decode", *within}
    assert made["recipe"]["model"] == "mini-h3"
    assert (place.folder / made["path"]).exists()


def test_no_recipe_leaves_the_recipe_out(place):
    place.run("generate", "a secret", "--model", "toy", "-o", "a.mp4", "--no-recipe")
    assert b"secret" not in (place.folder / "a.mp4").read_bytes()
    code, _, err = place.run("reproduce", "a.mp4")
    assert (code, err.splitlines()[0]) == (2, "error: a.mp4: has no recipe")


def test_a_prompt_comes_through_stdin(place):
    (place.folder / "prompt.txt").write_text("rain\n")
    with (place.folder / "prompt.txt").open() as prompt:
        code, out, _ = place.run("generate", "-", "--model", "toy", "-o", "a.mp4", stdin=prompt)
    assert (code, out) == (0, "a.mp4\n")
    assert read_recipe(place.folder / "a.mp4").prompt == "rain"


def test_a_narrow_locale_changes_nothing_but_the_letters_on_the_screen(place):
    narrow = Place(place.folder, {**place.environment, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    made = narrow.made("generate", "une fusée", "--model", "toy", "-o", "é.mp4")
    assert made["path"] == "é.mp4"
    assert read_recipe(place.folder / "é.mp4").prompt == "une fusée"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("moment", ["importing", "stepping"])
def test_a_signal_ends_in_order(place, signum, code, moment):
    process = place.start(*SLOW_TOY, "--num-inference-steps", "100", "-v")
    wait_until(process, moment)
    process.send_signal(signum)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, "")
    assert err.endswith("error: cancelled\n")
    assert not list(place.folder.iterdir())


def test_the_second_signal_ends_at_once(place):
    process = place.start(
        "generate", "a kite", "--model", "toy", "--extra-args", '{"step_seconds": 30}', "-o", "kite.mp4", "-v"
    )
    wait_until(process, "stepping")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert time.monotonic() - start < 5
    assert not list(place.folder.iterdir())
    process.communicate()


def wait_until(process: subprocess.Popen[str], moment: str) -> None:
    """Until the command has its signal handlers and imports the engine, or until the log says that the model is ready."""
    if moment == "importing":
        while not has_handler(process.pid, signal.SIGTERM):
            time.sleep(0.01)
        time.sleep(0.2)
        return
    assert process.stderr is not None
    assert "is ready" in process.stderr.readline()
    time.sleep(0.7)


def has_handler(pid: int, signum: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signum - 1) & 1)


def test_a_clip_from_keyframes_is_made_again_with_the_same_files(tmp_path):
    place = new_place(tmp_path)
    for name, colour in (("first.png", (200, 30, 30)), ("last.png", (30, 30, 200))):
        Image.new("RGB", (100, 60), colour).save(place.folder / name)
    files = ("--image", "first.png", "--last-image", "last.png")
    clip = place.made("generate", "it turns blue", *files, "--seed", "5", "--num-inference-steps", "3", "-o", "a.mp4")
    assert clip["task"] == "fl2va"
    assert place.made("reproduce", "a.mp4", *files)["is_same_frames"] is True
    code, _, err = place.run("reproduce", "a.mp4")
    assert code == 2
    assert "was made with image as first_frame, image as last_frame" in err
    code, _, err = place.run("reproduce", "a.mp4", "--image", "last.png", "--last-image", "first.png")
    assert code == 4
    assert "file 1, the image as first_frame" in err


def test_references_are_followed_and_a_service_of_another_task_refuses_them_at_once(tmp_path):
    place = new_place(tmp_path)
    Image.new("RGB", (64, 64)).save(place.folder / "a.png")
    asked = ("generate", "like this", "--reference", "image=a.png", "--num-inference-steps", "2", "-o", "a.mp4")
    code, _, err = place.run(*asked, "--task-type", "t2va")
    assert code == 2
    assert "this service runs t2va, fl2va" in err
    assert not (place.folder / "a.mp4").exists()
    assert place.made(*asked)["task"] == "ref2va"
