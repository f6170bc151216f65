"""NVIDIA cards through torch's CUDA. With rocm.py the one file that may use `torch.cuda`."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch

from omnireel.platforms.accelerator import Accelerator
from omnireel.platforms.interface import DeviceTraits, T

WARM_UP_CALLS = 3
AMPERE, HOPPER, BLACKWELL = 8, 9, 10
"""Major parts of compute capabilities; Ada is an 8, and the largest consumer cards of Blackwell are a 12."""


class Cuda(Accelerator):
    """See `Platform`."""

    name = torch_name = "cuda"
    traits = DeviceTraits(collectives="nccl", visible_devices="CUDA_VISIBLE_DEVICES", has_graphs=True)
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
        """By the oldest card."""
        majors = [int(card.capability.partition(".")[0]) for card in self.devices()] if self.available() else []
        oldest = min(majors, default=0)
        if oldest >= BLACKWELL:
            # The kernels of TensorRT-LLM and cuDNN are made for it; of FlashAttention only the fourth is.
            flash = ("FLASH_ATTN",) if _has("flash-attn-4") else ()
            return ("TRTLLM_ATTN", "CUDNN_ATTN", "FLASHINFER_ATTN", *flash, "TORCH_SDPA")
        if oldest == HOPPER:
            return ("FLASH_ATTN", "CUDNN_ATTN", "TORCH_SDPA")
        return ("FLASH_ATTN", "TORCH_SDPA") if oldest >= AMPERE else ("TORCH_SDPA",)

    def capability(self, index: int) -> str:
        """Compute capability as in "9.0"."""
        card = torch.cuda.get_device_properties(index)
        return f"{card.major}.{card.minor}"

    def capture(self, call: Callable[[], T], index: int = 0) -> Callable[[], T]:
        """A CUDA graph, recorded as torch documents it: warmed up on a stream of its own, for libraries choose kernels and
        allocate in their first calls. Other threads may go on using the card meanwhile.
        """
        device = self.device(index)
        with torch.cuda.device(device):
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP_CALLS):
                    call()
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                outputs = call()

        def replay() -> T:
            graph.replay()
            return outputs

        return replay


def _has(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False


PLATFORM = Cuda()
