"""Files as answers."""

import asyncio

import pytest

from omnireel.errors import UnknownJob
from omnireel.server.sending import Sent

SCOPE = {"type": "http", "method": "GET", "headers": [], "extensions": {}}


def sent(path):
    messages = []

    async def send(message):
        messages.append(message)

    async def receive():
        await asyncio.Event().wait()

    asyncio.run(Sent(path, media_type="video/mp4")(SCOPE, receive, send))
    return messages


def test_a_file_is_sent(tmp_path):
    (tmp_path / "a").write_bytes(b"clip")
    start, *pieces = sent(tmp_path / "a")
    assert start["status"] == 200
    assert b"".join(piece["body"] for piece in pieces) == b"clip"


def test_a_file_that_went_meanwhile_is_none_before_anything_was_said(tmp_path):
    with pytest.raises(UnknownJob):
        sent(tmp_path / "a")
