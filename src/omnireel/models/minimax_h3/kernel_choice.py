"""Which spelling of the kernels the denoiser and the video VAE run with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from omnireel.errors import MissingPackage
from omnireel.layers.kernels import PLAIN, TRACEABLE, Kernels, fused, why_not_fused

if TYPE_CHECKING:
    from omnireel.models.protocol import BuildContext

logger = logging.getLogger(__name__)


def denoiser_kernels(context: BuildContext) -> Kernels:
    """The spelling of what lies between matrix products.

    Raises:
        MissingPackage: fused kernels were asked for, and there is no Triton.
    """
    return TRACEABLE if context.has("compile_blocks") else _fused_where(context, "fused_kernels")


def vae_kernels(context: BuildContext) -> Kernels:
    """The same for the video VAE, which may be compiled by itself.

    Raises:
        MissingPackage: as above.
    """
    return _fused_where(context, "fused_vae")


def _fused_where(context: BuildContext, switch: str) -> Kernels:
    if not context.has(switch):
        return PLAIN
    why = why_not_fused()
    if why is None:
        return fused()
    if context.acceleration.fused_kernels == "on":
        raise MissingPackage("triton", "fused_kernels", "pip install triton")
    logger.warning("blocks run as they are written, slower than they could: %s", why)
    return PLAIN
