"""Writing a file so that it is there whole or not at all: beside its place under a hidden name, then renamed."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omnireel.errors import InvalidRequest


def check_writable(path: Path, *, suffixes: tuple[str, ...] = (".mp4",)) -> None:
    """Makes sure, before any work is done, that a file can be written there. An existing file may be overwritten.

    Raises:
        InvalidRequest: naming the path and what is wrong with it.
    """
    if path.suffix.lower() not in suffixes:
        raise InvalidRequest("output", str(path), f"its name must end in {' or '.join(suffixes)}")
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            # Refuses a name that the file system cannot hold; the hidden one below is shorter.
            path.lstat()
        if path.is_dir():
            raise InvalidRequest("output", str(path), "it is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise InvalidRequest("output", str(path), f"the folder {str(path.parent)!r} does not exist")
        # Asking for permission says little (root, read-only mounts, quotas); making a file says all.
        probe = _aside(path)
        with probe.open("xb"):
            pass
        probe.unlink()
    except (OSError, ValueError) as error:
        raise InvalidRequest("output", str(path), f"it cannot be written ({_words(error)})") from None


@contextmanager
def written_aside(path: Path, *, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Gives a hidden path to write to, which becomes `path` at the end of the block; after any error nothing is left.

    Raises:
        InvalidRequest: see `check_writable`; also when the disk is full.
    """
    check_writable(path, suffixes=suffixes)
    aside = _aside(path)
    try:
        yield aside
        with aside.open("rb") as stream:
            os.fsync(stream.fileno())
        aside.replace(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG):
            raise
        raise InvalidRequest("output", str(path), f"it cannot be written ({os.strerror(error.errno)})") from error
    finally:
        aside.unlink(missing_ok=True)


def _aside(path: Path) -> Path:
    # FFmpeg tells the format by the suffix, so that stays last; the name itself may leave no room for more.
    return path.with_name(f".omnireel-{secrets.token_hex(8)}.part{path.suffix}")


def _words(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
