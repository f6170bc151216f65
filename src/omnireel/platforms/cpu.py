"""The processor. Always there; everything in omnireel works on it."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from omnireel.errors import OutOfMemory
from omnireel.platforms.interface import DeviceInfo, DeviceTraits, T

_STATUS = Path("/proc/self/status")
_CPUINFO = Path("/proc/cpuinfo")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_NO_MEMORY = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")


class Cpu:
    """See `Platform`. Memory is that of this process."""

    name = "cpu"
    traits = DeviceTraits(collectives="gloo", visible_devices="", has_pinned_memory=False)
    default_dtype = "float32"
    attention_preference = ("TORCH_SDPA",)

    def available(self) -> bool:
        """Always."""
        return True

    def why_not(self) -> str:
        """Never unavailable."""
        return ""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The one processor."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        name = _model() or platform.processor() or platform.machine()
        return (DeviceInfo(index=0, name=name, total_bytes=total, capability=""),)

    def device(self, index: int = 0) -> torch.device:
        """The processor, whatever the index."""
        return torch.device("cpu")

    def use(self, index: int = 0) -> AbstractContextManager[object]:
        """It always is."""
        return nullcontext()

    def synchronize(self, index: int = 0) -> None:
        """Nothing to wait for."""

    def reset_peak_memory(self, index: int = 0) -> None:
        """Resets the kernel's high-water mark of this process, where Linux allows it."""
        try:
            # proc(5): writing 5 resets VmHWM.
            _CLEAR_REFS.write_text("5")
        except OSError:
            return

    def peak_memory_bytes(self, index: int = 0) -> int:
        """Most resident memory since the reset; since the start of the process where it cannot be reset."""
        peak = _kibibytes(_STATUS, "VmHWM")
        if peak is not None:
            return peak * 1024
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def free_memory_bytes(self, index: int = 0) -> int:
        """What the kernel says could be taken without swapping."""
        free = _kibibytes(Path("/proc/meminfo"), "MemAvailable")
        return free * 1024 if free is not None else self.devices()[0].total_bytes

    def release_memory(self, index: int = 0) -> None:
        """Nothing is held: the C library gives large blocks back by itself."""

    def capture(self, call: Callable[[], T], index: int = 0) -> Callable[[], T]:
        """The call itself."""
        return call

    def out_of_memory(self, error: BaseException, where: str, index: int = 0) -> OutOfMemory | None:
        """Python's MemoryError and the words of torch's CPU allocator."""
        asked = _NO_MEMORY.search(str(error))
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and asked):
            return OutOfMemory(where, int(asked[1]) if asked else None, self.free_memory_bytes())
        return None


def _kibibytes(file: Path, label: str) -> int | None:
    try:
        found = re.search(rf"^{label}:\s+(\d+) kB", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def _model() -> str:
    """The maker's name of the processor, where Linux tells it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", _CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


PLATFORM = Cpu()
