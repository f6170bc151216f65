"""Intel cards through torch's XPU. Not run on hardware."""

from __future__ import annotations

import torch

from omnireel.platforms.accelerator import Accelerator
from omnireel.platforms.interface import DeviceTraits

NO_FLASH_ARCHITECTURES = ("13136561920",)
"""Numbers of architectures (Data Center GPU Max) that the flash attention package has no kernels for."""


class Xpu(Accelerator):
    """See `Platform`."""

    name = torch_name = "xpu"
    traits = DeviceTraits(
        collectives="xccl", visible_devices="ZE_AFFINITY_MASK", has_float64=False, is_run_on_hardware=False
    )

    def why_not(self) -> str:
        """Every build of torch has the module; few see a card."""
        return "" if torch.xpu.is_available() else "torch sees no Intel card"

    @property
    def attention_preference(self) -> tuple[str, ...]:
        """Flash attention, but for the architectures without."""
        if any(item.capability in NO_FLASH_ARCHITECTURES for item in self.devices()):
            return ("TORCH_SDPA",)
        return ("FLASH_ATTN", "TORCH_SDPA")

    def capability(self, index: int) -> str:
        """The architecture's number."""
        return str(self.runtime().get_device_capability(index)["architecture"])


PLATFORM = Xpu()
