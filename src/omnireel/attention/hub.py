"""FlashAttention kernels that the `kernels` library downloads, ready built, from the Hugging Face Hub."""

from __future__ import annotations

import importlib
import logging
from functools import lru_cache

import torch

from omnireel.attention.backend import Capabilities
from omnireel.attention.flash import FlashKernel

logger = logging.getLogger(__name__)

INSTALL = "pip install kernels"
FLASH_2, FLASH_3 = "kernels-community/flash-attn2", "kernels-community/flash-attn3"
VERSIONS = (1, 2)
"""Of a kernel's interface, first choice first; a version has builds for some versions of torch."""


def hub_capabilities(*majors: str) -> Capabilities:
    """What both generations can take, on cards of these."""
    return Capabilities(
        platforms=("cuda",),
        capabilities=majors,
        head_dims=(64, 96, 128, 192, 256),
        dtypes=(torch.bfloat16, torch.float16),
        masks="keys",
        has_documents=True,
        has_spans=True,
        is_downloaded=True,
        is_run_on_hardware=False,
    )


@lru_cache(maxsize=4)
def hub_kernel(repository: str) -> FlashKernel:
    """The kernel in a repository, downloaded if it is not in the cache yet. It is compiled code that runs in this process, so
    this is done for nobody who did not name the backend.

    Raises:
        ImportError: no version can be had, with the reason of each.
    """
    kernels = importlib.import_module("kernels")
    problems = []
    for version in VERSIONS:
        try:
            module = kernels.get_kernel(repository, version=version)
        except (ImportError, OSError, ValueError, RuntimeError) as error:
            problems.append(f"version {version}: {error}")
        else:
            logger.info("attention kernel %s, version %d, from the hub", repository, version)
            return FlashKernel.of(repository, module)
    raise ImportError(f"{repository} cannot be loaded ({'; '.join(problems)})")
