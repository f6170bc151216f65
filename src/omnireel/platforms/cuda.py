"""NVIDIA cards through torch's CUDA. The one file that may use `torch.cuda`."""

from __future__ import annotations

import re

import torch

from omnireel.errors import OutOfMemory
from omnireel.platforms.cpu import PLATFORM as CPU
from omnireel.platforms.interface import DeviceInfo

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) (KiB|MiB|GiB)")
_LIBRARY_WORDS = re.compile(r"CUDA error: out of memory|CU(BLAS|DNN)_STATUS_[A-Z_]*ALLOC(ATION)?_FAILED")
"""How cuBLAS, cuDNN and the driver put it, in a plain RuntimeError."""

_UNIT_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Cuda:
    """See `Platform`. Peak memory is what torch's allocator held in tensors."""

    name = "cuda"
    default_dtype = "checkpoint"
    attention_preference = ("CUDNN_ATTN", "TORCH_SDPA")

    def available(self) -> bool:
        """Whether torch was built for CUDA and sees a card. ROCm builds call themselves CUDA too and are not meant."""
        return torch.version.hip is None and torch.cuda.is_available()

    def why_not(self) -> str:
        """Why `available` says no."""
        if self.available():
            return ""
        if torch.version.hip is not None:
            return "this build of torch is for ROCm"
        return "this build of torch has no CUDA" if torch.version.cuda is None else "torch sees no NVIDIA card"

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Every card, by index; capability as in "9.0"."""
        found = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
        return tuple(
            DeviceInfo(index=k, name=card.name, total_bytes=card.total_memory, capability=f"{card.major}.{card.minor}")
            for k, card in enumerate(found)
        )

    def device(self, index: int = 0) -> torch.device:
        """The card of an index."""
        return torch.device("cuda", index)

    def synchronize(self, index: int = 0) -> None:
        """Waits for every stream of the card."""
        torch.cuda.synchronize(index)

    def reset_peak_memory(self, index: int = 0) -> None:
        """Starts a new measurement. Torch knows no device before it is initialised, which is done once."""
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(index)

    def peak_memory_bytes(self, index: int = 0) -> int:
        """Most bytes in tensors since the reset."""
        return torch.cuda.max_memory_allocated(index)

    def free_memory_bytes(self, index: int = 0) -> int:
        """What the driver could still give."""
        return torch.cuda.mem_get_info(index)[0]

    def release_memory(self, index: int = 0) -> None:
        """Empties the cache of torch's allocator."""
        torch.cuda.empty_cache()

    def out_of_memory(self, error: BaseException, where: str, index: int = 0) -> OutOfMemory | None:
        """Torch's own error on a card, what libraries say instead, and whatever the processor's platform recognises."""
        if not isinstance(error, torch.OutOfMemoryError) and not _LIBRARY_WORDS.search(str(error)):
            return CPU.out_of_memory(error, where)
        asked = _ASKED.search(str(error))
        size = round(float(asked[1]) * _UNIT_BYTES[asked[2]]) if asked else None
        return OutOfMemory(where, size, self.free_memory_bytes(index))


PLATFORM = Cuda()
