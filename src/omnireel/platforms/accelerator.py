"""What the accelerators have in common: torch gives each kind a module of the same shape, `torch.<kind>`.

A kind's own file says where that module is, what the kind can do and how its libraries word a lack of memory.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from omnireel.errors import OutOfMemory
from omnireel.platforms.cpu import PLATFORM as CPU
from omnireel.platforms.interface import DeviceInfo, DeviceTraits, T

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(KiB|MiB|GiB|KB|MB|GB)")
_UNIT_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 2**10, "MB": 2**20, "GB": 2**30}
_NO_MEMORY = re.compile(r"out of memory|OUT_OF_(DEVICE_)?MEMORY")


class Accelerator(ABC):
    """See `Platform`. Peak memory is what torch's allocator held in tensors."""

    name: str
    torch_name: str
    """What torch calls such a device; ROCm's are "cuda" to it."""

    traits: DeviceTraits
    default_dtype = "checkpoint"
    library_words = _NO_MEMORY
    """How the kind's libraries say in a plain RuntimeError that memory ran out."""

    @abstractmethod
    def why_not(self) -> str:
        """Why it is not available; "" when it is."""

    def runtime(self) -> Any:
        """Torch's module for this kind."""
        return getattr(torch, self.torch_name)

    def available(self) -> bool:
        """Whether torch was built for it and sees a device."""
        return not self.why_not()

    @property
    def attention_preference(self) -> tuple[str, ...]:
        """See `Platform.attention_preference`."""
        return ("TORCH_SDPA",)

    def capability(self, index: int) -> str:
        """The maker's word for the device's generation; most have none that code needs."""
        return ""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Every device, by index."""
        runtime = self.runtime()
        found = [runtime.get_device_properties(index) for index in range(runtime.device_count())]
        return tuple(
            DeviceInfo(index=k, name=item.name, total_bytes=item.total_memory, capability=self.capability(k))
            for k, item in enumerate(found)
        )

    def device(self, index: int = 0) -> torch.device:
        """The torch device of an index."""
        return torch.device(self.torch_name, index)

    def use(self, index: int = 0) -> AbstractContextManager[object]:
        """See `Platform.use`; the thread's own comes back afterwards."""
        context: AbstractContextManager[object] = self.runtime().device(index)
        return context

    def synchronize(self, index: int = 0) -> None:
        """Waits for every stream of the device."""
        self.runtime().synchronize(index)

    def reset_peak_memory(self, index: int = 0) -> None:
        """Starts a new measurement. Torch knows no device before it is initialised, which is done once."""
        self.runtime().init()
        self.runtime().reset_peak_memory_stats(index)

    def peak_memory_bytes(self, index: int = 0) -> int:
        """Most bytes in tensors since the reset."""
        return int(self.runtime().max_memory_allocated(index))

    def free_memory_bytes(self, index: int = 0) -> int:
        """What the driver could still give."""
        return int(self.runtime().mem_get_info(index)[0])

    def release_memory(self, index: int = 0) -> None:
        """Empties the cache of torch's allocator."""
        self.runtime().empty_cache()

    def capture(self, call: Callable[[], T], index: int = 0) -> Callable[[], T]:
        """The call itself."""
        return call

    def out_of_memory(self, error: BaseException, where: str, index: int = 0) -> OutOfMemory | None:
        """Torch's own error on a device, what libraries say instead, and whatever the processor's platform recognises."""
        if not isinstance(error, torch.OutOfMemoryError) and not self._is_libraries(error):
            return CPU.out_of_memory(error, where)
        asked = _ASKED.search(str(error))
        size = round(float(asked[1]) * _UNIT_BYTES[asked[2]]) if asked else None
        return OutOfMemory(where, size, self.free_memory_bytes(index))

    def _is_libraries(self, error: BaseException) -> bool:
        return isinstance(error, RuntimeError) and self.library_words.search(str(error)) is not None
