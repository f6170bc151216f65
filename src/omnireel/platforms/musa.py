"""Moore Threads cards through torch_musa. Not run on hardware."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from omnireel.platforms.accelerator import Accelerator
from omnireel.platforms.interface import DeviceTraits

FLASH_CAPABILITY = (3, 1)
"""Least generation that mate, the flash attention package, runs on."""


class Musa(Accelerator):
    """See `Platform`."""

    name = torch_name = "musa"
    traits = DeviceTraits(
        collectives="mccl", visible_devices="MUSA_VISIBLE_DEVICES", has_float64=False, is_run_on_hardware=False
    )

    def why_not(self) -> str:
        """The package puts itself into torch as `torch.musa`."""
        if importlib.util.find_spec("torch_musa") is None:
            return "the package torch_musa is not installed"
        return "" if self.runtime().is_available() else "torch sees no Moore Threads card"

    def runtime(self) -> Any:
        """Torch's module for these cards, which exists once torch_musa is imported."""
        if not hasattr(torch, "musa"):
            importlib.import_module("torch_musa")
        return super().runtime()

    @property
    def attention_preference(self) -> tuple[str, ...]:
        """Flash attention where every card is new enough and mate is there."""
        has_mate = importlib.util.find_spec("mate") is not None
        generations = [tuple(int(part) for part in item.capability.split(".")) for item in self.devices()]
        if has_mate and all(generation >= FLASH_CAPABILITY for generation in generations):
            return ("FLASH_ATTN", "TORCH_SDPA")
        return ("TORCH_SDPA",)

    def capability(self, index: int) -> str:
        """Compute capability as in "3.1"."""
        major, minor = self.runtime().get_device_capability(index)
        return f"{major}.{minor}"


PLATFORM = Musa()
