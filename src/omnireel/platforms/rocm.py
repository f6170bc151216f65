"""AMD cards through torch's ROCm build, which answers under the name of CUDA. Not run on hardware."""

from __future__ import annotations

import importlib.util

import torch

from omnireel.platforms.accelerator import Accelerator
from omnireel.platforms.interface import DeviceTraits

FLASH_GENERATIONS = ("gfx942", "gfx950")
"""Generations (MI300, MI350) on which aiter's flash attention is the default."""


class Rocm(Accelerator):
    """See `Platform`."""

    name = "rocm"
    torch_name = "cuda"
    traits = DeviceTraits(collectives="nccl", visible_devices="HIP_VISIBLE_DEVICES", is_run_on_hardware=False)

    def why_not(self) -> str:
        """Only a ROCm build can."""
        if torch.version.hip is None:
            return "this build of torch has no ROCm"
        return "" if torch.cuda.is_available() else "torch sees no AMD card"

    @property
    def attention_preference(self) -> tuple[str, ...]:
        """Flash attention where aiter is there for every card."""
        has_aiter = importlib.util.find_spec("aiter") is not None
        if has_aiter and all(item.capability in FLASH_GENERATIONS for item in self.devices()):
            return ("FLASH_ATTN", "TORCH_SDPA")
        return ("TORCH_SDPA",)

    def capability(self, index: int) -> str:
        """The instruction set as in "gfx942", without its features."""
        words: str = torch.cuda.get_device_properties(index).gcnArchName
        return words.partition(":")[0]


PLATFORM = Rocm()
