"""FLASH_ATTN_3_HUB: FlashAttention 3 as built by the kernel hub, for Hopper; older cards are given generation 2, and it says so.
Not run on hardware.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from omnireel.attention.backend import AttentionBackend, Place
from omnireel.attention.flash import FlashBackend
from omnireel.attention.hub import FLASH_2, FLASH_3, INSTALL, hub_capabilities, hub_kernel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FlashAttention3Hub(FlashBackend):
    """See the file."""

    name = "FLASH_ATTN_3_HUB"
    can = hub_capabilities("8", "9")
    package = "kernels"
    install = INSTALL

    def bind(self, place: Place, options: Mapping[str, Any] | None) -> FlashAttention3Hub:
        """With the generation that the card has."""
        if place.major == 8:
            logger.warning("%s: capability %s has no FlashAttention 3; using %s", self.name, place.capability, FLASH_2)
            return replace(self, kernel=hub_kernel(FLASH_2))
        return replace(self, kernel=hub_kernel(FLASH_3))


BACKEND: AttentionBackend = FlashAttention3Hub()
