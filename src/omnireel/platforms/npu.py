"""Huawei Ascend devices through torch_npu. Not run on hardware."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from omnireel.platforms.accelerator import Accelerator
from omnireel.platforms.interface import DeviceTraits


class Npu(Accelerator):
    """See `Platform`."""

    name = torch_name = "npu"
    traits = DeviceTraits(
        collectives="hccl",
        visible_devices="ASCEND_RT_VISIBLE_DEVICES",
        has_inductor=False,
        has_float64=False,
        is_run_on_hardware=False,
    )

    def why_not(self) -> str:
        """The package puts itself into torch as `torch.npu`."""
        if importlib.util.find_spec("torch_npu") is None:
            return "the package torch_npu is not installed"
        return "" if self.runtime().is_available() else "torch sees no Ascend device"

    def runtime(self) -> Any:
        """Torch's module for Ascend, which exists once torch_npu is imported."""
        if not hasattr(torch, "npu"):
            importlib.import_module("torch_npu")
        return super().runtime()

    @property
    def attention_preference(self) -> tuple[str, ...]:
        """Flash attention where mindiesd is there."""
        has_kernels = importlib.util.find_spec("mindiesd") is not None
        return ("FLASH_ATTN", "TORCH_SDPA") if has_kernels else ("TORCH_SDPA",)


PLATFORM = Npu()
