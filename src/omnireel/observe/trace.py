"""Traces of everything that a process computes, by torch's profiler, for trace viewers such as Perfetto.

All threads are recorded, so that a trace begins and ends at once, also in the middle of a step.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnireel.errors import Conflict, EngineError, StorageFailed

logger = logging.getLogger(__name__)

_recording = threading.Lock()
"""Held while this process is recorded: torch has one profiler for all, and a second one ends the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOrder:
    """A trace that is wanted. folder: where, made if need be; name: begins the file's name; max_seconds: its own end."""

    folder: Path
    name: str
    max_seconds: float


class Tracer:
    """Records this process, one trace at a time. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._profile: Any = None
        self._timer: threading.Timer | None = None
        self._path: Path | None = None

    def start(self, order: TraceOrder) -> None:
        """Begins to record; one that runs is dropped.

        Raises:
            Conflict: another tracer records this process.
            StorageFailed: the folder cannot be written.
            EngineError: the profiler does not start.
        """
        with self._lock:
            self._drop()
            stamp = time.strftime("%Y%m%d-%H%M%S")
            path = order.folder / f"{order.name}-{stamp}-{os.getpid()}.json.gz"
            try:
                order.folder.mkdir(parents=True, exist_ok=True)
                path.touch()
            except OSError as error:
                raise StorageFailed(f"traces cannot be written to {order.folder}: {error.strerror}") from error
            try:
                self._profile = _started()
            except (ImportError, TypeError, RuntimeError, Conflict) as error:
                path.unlink(missing_ok=True)
                if isinstance(error, Conflict):
                    raise
                raise EngineError(f"the profiler does not start: {error}") from error
            self._path = path
            self._timer = threading.Timer(order.max_seconds, self._time_is_over, [path])
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> Path | None:
        """Ends the recording; the file of the last one, also where it ended by itself, and None where there was none.

        Raises:
            StorageFailed: it cannot be written.
        """
        with self._lock:
            self._write()
            path, self._path = self._path, None
            return path

    def close(self) -> None:
        """Drops the recording under way, if there is one."""
        with self._lock:
            self._drop()

    def _time_is_over(self, path: Path) -> None:
        with self._lock:
            if self._path == path and self._profile is not None:
                logger.warning("the trace %s ends by itself, for its time is over", path.name)
                try:
                    self._write()
                except StorageFailed as error:
                    logger.error("%s", error.message)

    def _write(self) -> None:
        profile, self._profile = self._profile, None
        if self._timer is not None:
            self._timer.cancel()
        if profile is None:
            return
        assert self._path is not None
        try:
            _ended(profile)
            profile.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:
            path, self._path = self._path, None
            raise StorageFailed(f"the trace {path} cannot be written: {error}") from error

    def _drop(self) -> None:
        profile, self._profile = self._profile, None
        if self._timer is not None:
            self._timer.cancel()
        if profile is not None and self._path is not None:
            _ended(profile)
            self._path.unlink(missing_ok=True)
        self._path = None


def _ended(profile: Any) -> None:
    try:
        profile.stop()
    finally:
        _recording.release()


def _started() -> Any:
    if not _recording.acquire(blocking=False):
        raise Conflict("another engine of this process is profiled")
    try:
        return _profile()
    except BaseException:
        _recording.release()
        raise


def _profile() -> Any:
    # Here, for the profiler imports much, and few ever want a trace.
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import profile, supported_activities

    # A private name of torch, which another version may lack: else only the calling thread's operations are recorded, which computes nothing.
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    found = profile(activities=supported_activities(), experimental_config=everywhere)  # type: ignore[no-untyped-call]
    found.start()
    return found
