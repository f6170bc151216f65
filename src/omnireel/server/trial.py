"""Files of strangers are first read by a process of its own, with limits: what takes a decoder down takes only that one.

`python -m omnireel.server.trial` reads a JSON list of {path, kind, name, start} from stdin and writes a line for each: its kind, or
what is wrong with it. `tried` runs it. What passes is decoded again by the engine, with the same code.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omnireel.errors import MediaUnreadable, OmniReelError
from omnireel.media.decode import read_clip, read_picture, read_sound
from omnireel.media.inspect import inspect_media
from omnireel.request import MediaKind

MEMORY_BYTES = 6 * 2**30
CPU_SECONDS = 60
MAX_FRAME_PIXELS = 36_000_000
"""Of a clip: a little over 8K."""
MAX_SECONDS = 900.0
"""Longest clip or recording."""
READ_SECONDS = 60
"""As much of a clip is decoded here, behind its start; models take less."""
AT_ONCE = 2


class Trial:
    """Runs the reading process, AT_ONCE of them at most."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._places = asyncio.Semaphore(AT_ONCE)

    async def tried(self, files: Sequence[Mapping[str, Any]]) -> list[MediaKind]:
        """The kind of each file, for which `kind` may be "" when it is not known.

        Raises:
            MediaUnreadable: naming the first file that cannot be read, or that takes too much to read.
        """
        if not files:
            return []
        async with self._places:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "omnireel.server.trial",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                asked = json.dumps(list(files)).encode()
                out, _ = await asyncio.wait_for(process.communicate(asked), self._timeout * len(files))
            except TimeoutError:
                raise MediaUnreadable("media", "took too long to read") from None
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return _told(files, out)


def _told(files: Sequence[Mapping[str, Any]], out: bytes) -> list[MediaKind]:
    kinds: list[MediaKind] = []
    for line in out.splitlines():
        said = json.loads(line)
        if "error" in said:
            raise OmniReelError.from_dict(said["error"])
        kinds.append(MediaKind(said["kind"]))
    if len(kinds) < len(files):
        raise MediaUnreadable(
            str(files[len(kinds)]["name"]), "cannot be read: its decoder broke down or ran out of room"
        )
    return kinds


def main() -> None:
    """The process that reads."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for file in json.loads(sys.stdin.buffer.read()):
        try:
            said: dict[str, Any] = {"kind": _kind(Path(file["path"]), file["kind"], file["name"], file["start"])}
        except MemoryError:
            said = {"error": MediaUnreadable(file["name"], "takes too much memory to read").to_dict()}
        except OmniReelError as error:
            said = {"error": error.to_dict()}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def _kind(path: Path, kind: str, name: str, start: float) -> MediaKind:
    """The file's kind, after reading as much of it as any model could want."""
    if kind:
        _read(path, MediaKind(kind), name, start)
        return MediaKind(kind)
    for one in (MediaKind.IMAGE, MediaKind.VIDEO, MediaKind.AUDIO):
        try:
            inspect_media(path, kind=one, name=name)
        except MediaUnreadable:
            continue
        _read(path, one, name, start)
        return one
    raise MediaUnreadable(name, "is no picture, clip or recording that can be read")


def _read(path: Path, kind: MediaKind, name: str, start: float) -> None:
    facts = inspect_media(path, kind=kind, name=name)
    if facts.seconds > MAX_SECONDS:
        raise MediaUnreadable(name, f"lasts {facts.seconds:.0f} s", hint=f"at most {MAX_SECONDS:.0f} s are read")
    if kind is MediaKind.IMAGE:
        read_picture(path, name=name)
        return
    if kind is MediaKind.AUDIO:
        read_sound(path, name=name, start_seconds=start, max_seconds=READ_SECONDS)
        return
    if facts.width * facts.height > MAX_FRAME_PIXELS:
        raise MediaUnreadable(name, f"has frames of {facts.width}x{facts.height} pixels")
    read_clip(
        path, name=name, fps=2.0, size=(32, 32), max_frames=2 * READ_SECONDS, start_seconds=start,
        max_sound_seconds=READ_SECONDS,
    )  # fmt: skip


if __name__ == "__main__":
    main()
