"""Keyframes and references on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from omnireel.cli.media import add_media_flags, media_of
from omnireel.errors import InvalidRequest
from omnireel.request import MediaKind


def media(*argv: str):
    parser = argparse.ArgumentParser()
    add_media_flags(parser)
    return media_of(parser.parse_args(argv))


def test_keyframes_have_roles():
    first, last = media("--last-image", "b.png", "--image", "a.png")
    assert (first.role, first.source, first.name) == ("first_frame", Path("a.png"), "image")
    assert (last.role, last.source, last.name) == ("last_frame", Path("b.png"), "last_image")


def test_references_keep_their_order_and_kinds():
    found = media("--reference", "audio=s.mp3", "--reference", "image=a=b.png", "--reference", "video=c.mp4")
    assert [ref.kind for ref in found] == [MediaKind.AUDIO, MediaKind.IMAGE, MediaKind.VIDEO]
    assert found[1].source == Path("a=b.png")


def test_a_data_url_is_read_at_once():
    assert media("--image", "data:,abc")[0].source == b"abc"


@pytest.mark.parametrize("text", ["a.png", "picture=a.png", "image=", "=a.png"])
def test_a_reference_needs_its_kind(text):
    with pytest.raises(InvalidRequest, match="image=FILE"):
        media("--reference", text)


def test_a_start_time_belongs_to_the_one_clip():
    (clip,) = media("--reference", "video=c.mp4", "--start-time-seconds", "1.5")
    assert clip.start_seconds == 1.5


@pytest.mark.parametrize(
    "argv",
    [
        ["--start-time-seconds", "2"],
        ["--start-time-seconds", "2", "--reference", "video=a", "--reference", "video=b"],
        ["--start-time-seconds=-1", "--reference", "video=a"],
        ["--start-time-seconds", "nan", "--reference", "video=a"],
        ["--start-time-seconds", "soon", "--reference", "video=a"],
    ],
)
def test_a_start_time_that_fits_nothing_is_refused(argv):
    with pytest.raises(InvalidRequest, match="start_time_seconds"):
        media(*argv)
