"""`omnireel generate --server URL`."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.support.servers import running

from omnireel.cli.remote import _fields
from omnireel.media.recipe import read_recipe
from omnireel.request import MediaKind, MediaRef

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    with running(tmp_path_factory.mktemp("toy"), environment={"OMNIREEL_API_KEY": "k"}) as server:
        server.http.headers["Authorization"] = "Bearer k"
        yield server


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OMNIREEL_API_KEY", "k")


def test_a_server_makes_the_clip_that_this_process_would(toy, omnireel):
    flags = ("a kite", "--seed", "3", "--seconds", "1", "--extra-args", '{"step_seconds": 0.01}')
    there = omnireel("generate", *flags, "--server", toy.url, "-o", "there.mp4", "--json")
    here = omnireel("generate", *flags, "--model", "toy", "-o", "here.mp4", "--json")
    assert there.code == here.code == 0, there.err
    recipes = [read_recipe(Path(name)) for name in ("there.mp4", "here.mp4")]
    assert recipes[0] is not None
    assert recipes[1] is not None
    assert recipes[0].frames_digest == recipes[1].frames_digest
    said = json.loads(there.out)
    assert (said["path"], said["seed"], said["num_frames"]) == ("there.mp4", 3, 24)
    assert toy.job(said["job_id"])["status"] == "completed"


def test_the_name_of_the_file_is_printed_and_made_up_where_there_is_none(toy, omnireel):
    ended = omnireel("generate", "a kite", "--seed", "77", "--seconds", "1", "--server", toy.url)
    assert (ended.code, ended.out) == (0, "omnireel-77.mp4\n")
    assert Path("omnireel-77.mp4").is_file()


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--seconds", "99"], 2, "error: seconds: "),
        (["--width", "7", "--height", "32"], 2, "error: width: "),
        (["--dtype", "float32"], 2, "error: --dtype cannot go with --server"),
        (["--output-type", "latent"], 2, "error: output_type: "),
        (["--image", "nowhere.png"], 2, "error: image: "),
        (["--model", "another"], 2, "error: unknown model 'another'"),
        (["--extra-args", '{"fail": "decode"}'], 4, "error: request video_"),
        (["-o", "no/such/folder.mp4"], 2, "error: output: "),
    ],
)
def test_what_is_wrong_is_told_as_without_a_server(toy, omnireel, flags, code, words):
    ended = omnireel("generate", "a kite", "--server", toy.url, *flags)
    assert ended.code == code
    assert words in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(("url", "code"), [("http://127.0.0.1:9", 4), ("127.0.0.1:8000", 2), ("ftp://a", 2)])
def test_no_server_is_told(omnireel, url, code):
    assert omnireel("generate", "a kite", "--server", url).code == code


def test_a_wrong_key_is_told(toy, omnireel, monkeypatch):
    monkeypatch.setenv("OMNIREEL_API_KEY", "other")
    ended = omnireel("generate", "a kite", "--server", toy.url)
    assert ended.code == 2
    assert "the API key is not known here" in ended.err


def test_an_interrupt_gives_the_job_up_there_too(toy, omnireel):
    def interrupt():
        while toy.http.get("/health").json()["running"] == 0:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    slow = '{"step_seconds": 0.3}'
    ended = omnireel("generate", "a kite", "--server", toy.url, "--num-inference-steps", "50", "--extra-args", slow)
    thread.join()
    assert ended.code == 130
    assert toy.http.get("/v1/videos").json()["data"][0]["status"] == "cancelled"


def test_files_go_there_and_leave_nothing_behind(toy, omnireel):
    Image.new("RGB", (96, 64), "red").save("a.png")
    ended = omnireel("generate", "a ball", "--image", "a.png", "--server", toy.url)
    # The toy takes no media; that it says so means that the file was found and read.
    assert (ended.code, "takes no media" in ended.err) == (2, True)
    assert toy.http.get("/v1/files").json()["data"] == []


def ref(kind, role, start=0.0):
    return MediaRef(kind=MediaKind(kind), role=role, source=b"", name="x", start_seconds=start)


@pytest.mark.parametrize(
    ("media", "fields"),
    [
        ([], {}),
        (
            [ref("image", "first_frame"), ref("image", "last_frame")],
            {"input_reference": [0, 1], "frame_indices": [0, -1]},
        ),
        ([ref("image", "last_frame")], {"input_reference": [0], "frame_indices": [-1]}),
        ([ref("image", "reference")], {"image_reference": [0]}),
        (
            [ref("image", "reference"), ref("video", "reference", 2.0)],
            {"input_references": [0, 1], "start_time_seconds": [2.0]},
        ),
    ],
)
def test_roles_become_fields(media, fields):
    assert _fields(media, list[Any](range(len(media)))) == fields
