"""The one door for media: whatever way a file comes, it lands in the request's folder, within its limits, and is tried there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from omnireel.config import ServerSpec
from omnireel.errors import Conflict, InvalidRequest, MediaUnreadable
from omnireel.media.fetch import fetch, is_url
from omnireel.request import MediaKind, MediaRef
from omnireel.server.asked import Source
from omnireel.server.storage import copied, storage_errors
from omnireel.server.trial import Trial

MAX_FILE_BYTES = 100 * 2**20
MAX_SOURCES = 16
FETCHES_AT_ONCE = 16
FIRST, LAST, REFERENCE = "first_frame", "last_frame", "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """A file of a request that can be read. field: what errors call it; path: relative to the request's folder."""

    field: str
    kind: MediaKind
    path: str
    start_seconds: float = 0.0


class Inputs:
    """Takes media in.

    Args:
        spec: what may come from where.
        stored: gives the path of an uploaded file by its id.
        clip: gives the path of a finished clip by its job's id.
    """

    def __init__(self, spec: ServerSpec, stored: Callable[[str], Path], clip: Callable[[str], Path]) -> None:
        self._spec = spec
        self._stored, self._clip = stored, clip
        self._trial = Trial(spec.media_timeout)
        # Of their own, so that hosts which answer slowly hold up nobody but those who named them.
        self._fetchers = ThreadPoolExecutor(FETCHES_AT_ONCE, thread_name_prefix="omnireel-fetch")

    async def taken(self, sources: Sequence[Source], starts: Sequence[float], folder: Path) -> tuple[Medium, ...]:
        """The media in their order, as files of `folder`.

        Raises:
            ClientError: one cannot be had, is too large or cannot be read.
            StorageFailed: the disk is full.
        """
        if len(sources) > MAX_SOURCES:
            raise InvalidRequest("input_references", f"{len(sources)} media", f"at most {MAX_SOURCES} are taken")
        paths = [folder / f"input-{index}" for index in range(len(sources))]
        for source, path in zip(sources, paths, strict=True):
            threads = self._fetchers if source.url else None
            await asyncio.get_running_loop().run_in_executor(threads, self._take, source, path)
        begins = [0.0] * len(sources)
        tries = [
            {"path": str(path), "kind": source.kind, "name": source.field, "start": 0.0}
            for source, path in zip(sources, paths, strict=True)
        ]
        kinds = await self._trial.tried(tries)
        clips = [index for index, kind in enumerate(kinds) if kind is MediaKind.VIDEO]
        if starts:
            if len(starts) != len(clips):
                raise InvalidRequest(
                    "start_time_seconds", list(starts), f"one for each clip is needed, and there are {len(clips)}"
                )
            for index, start in zip(clips, starts, strict=True):
                begins[index] = start
            await self._trial.tried([{**tries[index], "kind": "video", "start": begins[index]} for index in clips])
        return tuple(
            Medium(field=source.field, kind=kind, path=path.name, start_seconds=start)
            for source, kind, path, start in zip(sources, kinds, paths, begins, strict=True)
        )

    def _take(self, source: Source, target: Path) -> None:
        with storage_errors():
            if source.upload is not None:
                copied(source.upload.file, target, name=source.field, max_bytes=MAX_FILE_BYTES)
            elif source.file_id:
                _copy(self._stored(source.file_id), target, source.field)
            elif source.video_id:
                _copy(self._clip(source.video_id), target, source.field)
            elif source.url[:5].lower() == "file:":
                _copy(self._local(source), target, source.field)
            elif is_url(source.url):
                target.write_bytes(self._fetched(source))
            else:
                raise InvalidRequest(
                    source.field, "...", "it must be a file, or a URL that begins with http, https or data"
                )

    def _fetched(self, source: Source) -> bytes:
        return fetch(
            source.url,
            name=source.field,
            max_bytes=MAX_FILE_BYTES,
            timeout_seconds=self._spec.media_timeout,
            allow_private=self._spec.allow_private_media,
        )

    def _local(self, source: Source) -> Path:
        """A file below the allowed folder, links followed."""
        root = self._spec.allowed_local_media_path
        if root is None:
            raise MediaUnreadable(source.field, "is a file of the server, and none may be named", hint="send the file")
        parts = urlsplit(source.url)
        try:
            path = Path(unquote(parts.path)).resolve()
            is_inside = parts.netloc in ("", "localhost") and path.is_relative_to(root.resolve()) and path.is_file()
        except (OSError, ValueError):
            is_inside = False
        if not is_inside:
            raise MediaUnreadable(source.field, "is no file that may be named")
        return path


def _copy(source: Path, target: Path, field: str) -> None:
    try:
        with source.open("rb") as stream:
            copied(stream, target, name=field, max_bytes=MAX_FILE_BYTES)
    except FileNotFoundError:
        raise Conflict(f"{field}: the file is gone") from None


def roles_of(media: Sequence[Medium], frame_indices: Sequence[int] | None) -> list[list[str]]:
    """The roles that the media may have, the likeliest first: pictures alone are keyframes where nothing says otherwise."""
    references = [REFERENCE] * len(media)
    if frame_indices is not None:
        if len(frame_indices) != len(media):
            raise InvalidRequest("extra_params.frame_indices", list(frame_indices), f"there are {len(media)} pictures")
        return [[FIRST if index == 0 else LAST for index in frame_indices]]
    are_pictures = all(medium.kind is MediaKind.IMAGE for medium in media)
    keyframes = [FIRST, LAST][: len(media)]
    if not media or not are_pictures or len(media) > 2:
        return [references]
    # Which task takes which is for the model's rules to say: the second is tried where they refuse the first.
    both = [keyframes, references]
    return both[::-1] if all(medium.field.startswith("image_reference") for medium in media) else both


def refs_of(media: Sequence[Medium], roles: Sequence[str], folder: Path) -> tuple[MediaRef, ...]:
    """The media as the engine takes them."""
    return tuple(
        MediaRef(
            kind=medium.kind,
            role=role,
            source=folder / medium.path,
            name=medium.field,
            start_seconds=medium.start_seconds,
        )
        for medium, role in zip(media, roles, strict=True)
    )
