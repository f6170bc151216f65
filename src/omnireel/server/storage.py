"""The storage root: one folder a job, one server a root.

A folder is filled under `incoming` and renamed into its place, so whatever is in its place is whole. What no row of the job
table belongs to is removed when a server starts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from omnireel.errors import SetupError, StorageFailed, TooLarge

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.EFBIG)
_CHUNK_BYTES = 1 << 20


class Storage:
    """A locked storage root; the lock goes with the process, however that ends.

    incoming: what comes with requests; emptied when a server starts.

    Raises:
        SetupError: the folder cannot be made or written, or another server has it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._videos, self._files, self.incoming = root / "videos", root / "files", root / "incoming"
        try:
            for folder in (self._videos, self._files, self.incoming):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = (root / "lock").open("w")
            probe = self.incoming / secrets.token_hex(8)
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as error:
            raise SetupError(
                f"the storage folder cannot be used ({error.strerror})",
                hint="give one that can be written with --storage-path",
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise SetupError(
                "another server uses this storage folder", hint="give each server a --storage-path of its own"
            ) from None

    @property
    def database(self) -> Path:
        """Where the job table lies."""
        return self.root / "jobs.db"

    def video(self, job_id: str) -> Path:
        """The folder of a job."""
        return self._videos / job_id

    def file(self, file_id: str) -> Path:
        """An uploaded file."""
        return self._files / file_id

    @contextmanager
    def arriving(self) -> Iterator[Path]:
        """A fresh folder for what comes with a request; what was not moved away is removed at the end of the block.

        Raises:
            StorageFailed: the disk is full or cannot be written.
        """
        folder = self.incoming / secrets.token_hex(16)
        with storage_errors():
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def keep(self, arrived: Path, place: Path) -> None:
        """Moves a folder or file that is whole into its place."""
        with storage_errors():
            arrived.replace(place)

    def drop(self, place: Path) -> None:
        """Removes a folder or file, whether or not it is there."""
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            with suppress(OSError):
                place.unlink()

    def sweep(self, jobs: Collection[str], files: Collection[str]) -> int:
        """Removes what belongs to no job and no file of the table, and gives how many that were.

        Called before anything runs, so what is hidden in a job's folder is a file that was being written when the server was killed.
        """
        orphans = [path for path in self._videos.iterdir() if path.name not in jobs]
        orphans += self._videos.glob("*/.*")
        orphans += [path for path in self._files.iterdir() if path.name not in files]
        orphans += list(self.incoming.iterdir())
        for path in orphans:
            self.drop(path)
        return len(orphans)

    def close(self) -> None:
        """Lets another server have the root."""
        self._lock.close()


@contextmanager
def storage_errors() -> Iterator[None]:
    """Around whatever writes below the root.

    Raises:
        StorageFailed: the disk is full, read-only or broken; other errors are bugs and pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageFailed(
            f"the server cannot store anything now ({os.strerror(error.errno or 0)})",
            hint="try again later, or tell who runs the server",
        ) from None


def copied(source: IO[bytes], target: Path, *, name: str, max_bytes: int) -> None:
    """Copies a stream to a new file piece by piece.

    Raises:
        TooLarge: it holds more than `max_bytes`.
    """
    total = 0
    with target.open("xb") as stream:
        while piece := source.read(_CHUNK_BYTES):
            total += len(piece)
            if total > max_bytes:
                raise TooLarge(f"{name}: it holds more than {max_bytes} bytes")
            stream.write(piece)
