"""NVIDIA cards through torch's CUDA. With rocm.py the one file that may use `torch.cuda`."""

from __future__ import annotations

import re

import torch

from omnireel.platforms.accelerator import Accelerator
from omnireel.platforms.interface import DeviceTraits


class Cuda(Accelerator):
    """See `Platform`."""

    name = torch_name = "cuda"
    traits = DeviceTraits(collectives="nccl", visible_devices="CUDA_VISIBLE_DEVICES")
    library_words = re.compile(r"CUDA error: out of memory|CU(BLAS|DNN)_STATUS_[A-Z_]*ALLOC(ATION)?_FAILED")
    """How cuBLAS, cuDNN and the driver put it."""

    def why_not(self) -> str:
        """ROCm builds call themselves CUDA too and are not meant."""
        if torch.version.hip is not None:
            return "this build of torch is for ROCm"
        if torch.cuda.is_available():
            return ""
        return "this build of torch has no CUDA" if torch.version.cuda is None else "torch sees no NVIDIA card"

    @property
    def attention_preference(self) -> tuple[str, ...]:
        """cuDNN's fused kernels, where torch has them."""
        return ("CUDNN_ATTN", "TORCH_SDPA")

    def capability(self, index: int) -> str:
        """Compute capability as in "9.0"."""
        card = torch.cuda.get_device_properties(index)
        return f"{card.major}.{card.minor}"


PLATFORM = Cuda()
