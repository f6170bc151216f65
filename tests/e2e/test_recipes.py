"""Every recipe of the server's guide runs as it is written, and what examples start exists."""

import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image
from tests.support.servers import running

from omnireel.cli.main import build_parser

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "server.md").read_text()
RECIPES = re.findall(r"^## (.*?)\n|^```(sh|python)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def recipes():
    """(name, language, text) of every block that is to be run, in order."""
    found: list[Any] = []
    heading = ""
    for title, language, text in RECIPES:
        heading = title or heading
        if text:
            found.append(pytest.param(language, text, id=f"{heading}-{len(found)}"))
    return found


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory, h3):
    """A server with every task, and a folder with the files that recipes name."""
    folder = tmp_path_factory.mktemp("kitchen")
    Image.new("RGB", (96, 64), "red").save(folder / "first.png")
    Image.new("RGB", (96, 64), "blue").save(folder / "last.png")
    samples = bytes(16_000)
    head = (
        b"RIFF"
        + struct.pack("<I", 36 + len(samples))
        + b"WAVEfmt "
        + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    )
    (folder / "song.wav").write_bytes(head + b"data" + struct.pack("<I", len(samples)) + samples)
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    command = bin_folder / "omnireel"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m omnireel.cli "$@"\n')
    command.chmod(0o755)
    (bin_folder / "python3").symlink_to(sys.executable)
    return h3, folder


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not here")
@pytest.mark.parametrize(("language", "text"), recipes())
def test_a_recipe_runs_as_it_is_written(kitchen, language, text):
    server, folder = kitchen
    text = text.replace("http://127.0.0.1:8000", server.url)
    command = (
        ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-W", "ignore", "-c", text]
    )
    before = set(folder.glob("*.mp4"))
    environment = {"HOME": str(folder), "PATH": f"{folder / 'bin'}:{os.defpath}", "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    (made,) = set(folder.glob("*.mp4")) - before
    with av.open(str(made)) as container:
        assert (container.streams.video[0].width, container.streams.video[0].height) == (64, 64)


def started_by(text):
    """The words behind `omnireel serve` in an example."""
    if "ENTRYPOINT" in text:
        words = re.search(r"ENTRYPOINT (\[.*\])", text), re.search(r"^CMD (\[.*\])", text, re.MULTILINE)
        entry, command = (json.loads(found[1]) for found in words if found)
        return [*entry[2:], *command]
    line = re.search(r"ExecStart=\S+ serve (.*)", text)
    assert line is not None
    return shlex.split(line[1])


@pytest.mark.parametrize("name", ["omnireel.service", "Containerfile"])
def test_an_example_starts_a_server_with_flags_that_exist(name):
    arguments = build_parser().parse_args(["serve", *started_by((ROOT / "examples" / name).read_text())])
    assert (arguments.served, arguments.port) == ("mini-h3", "8000")


def test_systemd_is_told_when_the_model_is_there_and_when_it_stops(tmp_path):
    place = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(place))
        heard.settimeout(60)
        with running(tmp_path / "server", environment={"NOTIFY_SOCKET": str(place)}) as server:
            assert heard.recv(100) == b"READY=1"
            assert server.terminate() == 0
        assert heard.recv(100) == b"STOPPING=1"
