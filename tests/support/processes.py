"""What the system says of processes and of what they leave behind; Linux only."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits for it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int | None = None) -> set[int]:
    """Processes that this one started and that are still there, zombies too."""
    found: set[int] = set()
    for task in Path(f"/proc/{os.getpid() if pid is None else pid}/task").iterdir():
        # A thread may have ended since it was listed; its children are another's then, and are seen the next time.
        with suppress(FileNotFoundError, ProcessLookupError):
            found |= {int(word) for word in (task / "children").read_text().split()}
    return found


def shared_names() -> set[str]:
    """Names in /dev/shm."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def open_files() -> int:
    """Descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def proportional_mb(pid: int | None = None) -> float:
    """Memory of a process in MiB, pages that several processes share divided among them."""
    lines = Path(f"/proc/{os.getpid() if pid is None else pid}/smaps_rollup").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def resident_mb(pid: int | None = None) -> float:
    """Memory of a process in MiB, shared pages included."""
    lines = Path(f"/proc/{os.getpid() if pid is None else pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def threads_left() -> list[str]:
    """Threads of the package, but for the one that starts processes, which stays with the process."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("omnireel") and name != "omnireel-starter"]
