"""FLASH_ATTN_HUB: FlashAttention 2 as built by the kernel hub, for cards of capability 8 and 9. Not run on hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from omnireel.attention.backend import AttentionBackend, Place
from omnireel.attention.flash import FlashBackend
from omnireel.attention.hub import FLASH_2, INSTALL, hub_capabilities, hub_kernel


@dataclass(frozen=True, kw_only=True)
class FlashAttentionHub(FlashBackend):
    """See the file."""

    name = "FLASH_ATTN_HUB"
    can = hub_capabilities("8", "9")
    package = "kernels"
    install = INSTALL

    def bind(self, place: Place, options: Mapping[str, Any] | None) -> FlashAttentionHub:
        """With the downloaded kernel."""
        return replace(self, kernel=hub_kernel(FLASH_2))


BACKEND: AttentionBackend = FlashAttentionHub()
