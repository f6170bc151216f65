"""FLASH_ATTN: the FlashAttention that is installed for the kind of device. On NVIDIA cards the newest generation that fits:
4 on Blackwell, 3 on Hopper (also as the wheel with the forward pass alone), else 2, else the one inside vLLM.

Run on one NVIDIA H200 with fa3_fwd_interface. Other kernels are called as their packages document, and tested on stand-ins,
which is why doctor tells that the backend was not run.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from omnireel.attention.backend import AttentionBackend, Capabilities, Place, installed
from omnireel.attention.flash import FlashBackend, FlashKernel, load_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A package's module; `majors`: of the compute capabilities it has kernels for, empty for any."""

    module: str
    platform: str
    install: str
    majors: tuple[int, ...] = ()
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
    distribution: str = ""
    """Set where the module's first part is shared with other packages, so that finding it says nothing."""

    @property
    def is_there(self) -> bool:
        """Whether it is installed; nothing is imported."""
        if not self.distribution:
            return installed(self.module.partition(".")[0])
        try:
            return bool(version(self.distribution))
        except PackageNotFoundError:
            return False

    def fits(self, place: Place) -> bool:
        """Whether it has kernels for the place; an unknown capability fits."""
        return self.platform == place.platform and (not self.majors or place.major in (0, *self.majors))


# flash_attn is the home of generation 2 and, as flash_attn.cute, of 4, from two distributions.
SOURCES = (
    Source(
        module="flash_attn.cute",
        platform="cuda",
        install="pip install flash-attn-4",
        majors=(10, 11, 12),
        distribution="flash-attn-4",
    ),
    # Built without kernels for float16, as its fa3_fwd_config says.
    Source(
        module="fa3_fwd_interface",
        platform="cuda",
        install="pip install fa3-fwd",
        majors=(9,),
        dtypes=(torch.bfloat16,),
    ),
    Source(module="flash_attn_interface", platform="cuda", install="pip install fa3-fwd", majors=(9,)),
    Source(
        module="flash_attn",
        platform="cuda",
        install="pip install flash-attn",
        majors=(8, 9, 10, 12),
        distribution="flash-attn",
    ),
    Source(module="vllm.vllm_flash_attn", platform="cuda", install="pip install vllm", majors=(8, 9, 10)),
    Source(module="aiter", platform="rocm", install="install aiter from https://github.com/ROCm/aiter"),
    Source(module="vllm_xpu_kernels.flash_attn_interface", platform="xpu", install="pip install vllm-xpu-kernels"),
    Source(module="mate", platform="musa", install="install mate from https://github.com/MooreThreads/mate"),
    Source(module="mindiesd", platform="npu", install="install mindiesd from https://gitcode.com/Ascend/MindIE-SD"),
)
"""Best first."""


@dataclass(frozen=True, kw_only=True)
class FlashAttention(FlashBackend):
    """See the file."""

    name = "FLASH_ATTN"
    can = Capabilities(
        platforms=("cuda", "rocm", "xpu", "musa", "npu"),
        head_dims=(64, 96, 128, 192, 256),
        dtypes=(torch.bfloat16, torch.float16),
        masks="keys",
        has_documents=True,
        has_spans=True,
        is_run_on_hardware=False,
    )

    def available(self, place: Place) -> str | None:
        """What is installed may have no kernels for the card."""
        if place.platform == "cuda" and 0 < place.major < 8:
            return f"it needs compute capability 8.0, this device has {place.capability}"
        return None

    def dtypes(self, place: Place) -> tuple[torch.dtype, ...]:
        """Of the best package that is there."""
        there = (source.dtypes for source in SOURCES if source.fits(place) and source.is_there)
        return next(there, self.can.dtypes)

    def missing(self, place: Place) -> str | None:
        """The package that would be best, when none of those that fit is there."""
        fitting = [source for source in SOURCES if source.fits(place)]
        return fitting[0].install if fitting and not any(source.is_there for source in fitting) else None

    def bind(self, place: Place, options: Mapping[str, Any] | None) -> FlashAttention:
        """With the first kernel that fits, is there and can be imported."""
        problems = []
        for source in SOURCES:
            if not source.fits(place) or not source.is_there:
                continue
            try:
                kernel = ascend_kernel() if place.platform == "npu" else load_kernel(source.module)
            except (ImportError, OSError, AttributeError) as error:
                problems.append(f"{source.module}: {error}")
            else:
                return replace(self, kernel=kernel)
        raise ImportError("; ".join(problems) or "none of its packages is there")


def ascend_kernel() -> FlashKernel:
    """Ascend's function has neither bounds nor a causal switch; a causal call is given a mask, True where a key may be seen."""
    attention_forward = importlib.import_module("mindiesd").attention_forward

    def dense(q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, *, softmax_scale: float, causal: bool) -> Tensor:
        rows, keys = q_BSHD.shape[1], k_BSHD.shape[1]
        mask = None
        if causal:
            mask = torch.ones(1, 1, rows, keys, dtype=torch.bool, device=q_BSHD.device).tril(keys - rows)
        # Said by hand: left to itself it times every operator it has in the first call of each shape.
        made: Tensor = attention_forward(
            q_BSHD,
            k_BSHD,
            v_BSHD,
            attn_mask=mask,
            scale=softmax_scale,
            head_first=False,
            opt_mode="manual",
            op_type="fused_attn_score",
            layout="BNSD",
        )
        return made

    return FlashKernel(source="mindiesd", dense=dense, varlen=None)


BACKEND: AttentionBackend = FlashAttention()
