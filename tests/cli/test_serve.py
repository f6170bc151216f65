"""What `omnireel serve` says when there is nothing to serve; the rest is in tests/e2e."""

import socket
from contextlib import closing

import pytest

from omnireel.server.storage import Storage


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--host", "no.such.host.invalid"], 3, "error: cannot listen at no.such.host.invalid"),
        (["--api-key-file", "/nowhere"], 3, "error: api_key_file"),
        (["--storage-path", "/proc/nowhere"], 3, "error: the storage folder cannot be used"),
        (["--device", "npu"], 3, "error: "),
        (["--model", "toy"], 2, "error: both MODEL and --model"),
    ],
)
def test_what_cannot_be_served_is_told_at_once(omnireel, tmp_path, flags, code, words):
    ended = omnireel("serve", "toy", "--port", "0", "--storage-path", str(tmp_path / "root"), *flags)
    assert (ended.code, ended.out) == (code, "")
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_a_port_that_is_taken_is_told(omnireel, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = omnireel("serve", "toy", "--port", port, "--storage-path", str(tmp_path))
    assert ended.code == 3
    assert f"error: cannot listen at 127.0.0.1 port {port} (Address already in use)" in ended.err


def test_two_servers_on_one_folder_are_refused(omnireel, tmp_path):
    with closing(Storage(tmp_path)):
        ended = omnireel("serve", "toy", "--port", "0", "--storage-path", str(tmp_path))
    assert ended.code == 3
    assert "error: another server uses this storage folder" in ended.err
