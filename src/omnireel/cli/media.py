"""The files that a request on the command line comes with: keyframes and references, by name or URL."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from omnireel.errors import InvalidRequest
from omnireel.request import MediaKind, MediaRef

_KINDS = {"image": MediaKind.IMAGE, "video": MediaKind.VIDEO, "audio": MediaKind.AUDIO}
MAX_FETCH_BYTES = 100 * 2**20


def add_media_flags(parser: argparse.ArgumentParser) -> None:
    """--image, --last-image, --reference and --start-time-seconds."""
    group = parser.add_argument_group("media")
    group.add_argument("--image", metavar="FILE|URL", help="the picture that the clip begins with")
    group.add_argument("--last-image", metavar="FILE|URL", help="the picture that the clip ends with")
    group.add_argument(
        "--reference",
        metavar="KIND=FILE|URL",
        action="append",
        default=[],
        help="a picture, clip or recording to follow (image=, video=, audio=); may be given several times, in order",
    )
    group.add_argument(
        "--start-time-seconds", metavar="S", default="0", help="where in its file the one reference clip begins"
    )


def media_of(arguments: argparse.Namespace) -> tuple[MediaRef, ...]:
    """The files of a command line in their order; those named by URL are fetched.

    Raises:
        InvalidRequest: a reference has no kind, or the start time fits none.
        MediaUnreadable: a URL cannot be fetched.
    """
    found = [*_keyframes(arguments), *_references(arguments)]
    start = _start(arguments.start_time_seconds)
    clips = [ref for ref in found if ref.kind is MediaKind.VIDEO]
    if start and len(clips) != 1:
        raise InvalidRequest(
            "start_time_seconds", start, f"it belongs to one reference clip, and there are {len(clips)}"
        )
    return tuple(_begun(ref, start) if ref.kind is MediaKind.VIDEO else ref for ref in found)


def _keyframes(arguments: argparse.Namespace) -> Iterator[MediaRef]:
    for role, name, text in (
        ("first_frame", "image", arguments.image),
        ("last_frame", "last_image", arguments.last_image),
    ):
        if text is not None:
            yield MediaRef(kind=MediaKind.IMAGE, role=role, source=_source(text, name), name=name)


def _references(arguments: argparse.Namespace) -> Iterator[MediaRef]:
    for index, text in enumerate(arguments.reference):
        name = f"reference[{index}]"
        word, equals, rest = text.partition("=")
        if not equals or word not in _KINDS or not rest:
            raise InvalidRequest(name, text, "write image=FILE, video=FILE or audio=FILE")
        yield MediaRef(kind=_KINDS[word], role="reference", source=_source(rest, name), name=name)


def _source(text: str, name: str) -> Path | bytes:
    from omnireel.media.fetch import fetch, is_url

    return fetch(text, name=name, max_bytes=MAX_FETCH_BYTES) if is_url(text) else Path(text)


def _start(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise InvalidRequest("start_time_seconds", text, "it must be a number of seconds, 0 or more")
    return seconds


def _begun(ref: MediaRef, start: float) -> MediaRef:
    return MediaRef(kind=ref.kind, role=ref.role, source=ref.source, name=ref.name, start_seconds=start)
