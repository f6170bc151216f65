"""What a user may say about speed, as plain data; no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SWITCH = ("auto", "on", "off")
ENCODE_PRECISIONS = ("float32", "tf32", "float16")

# What has not been measured on a kind of device yet stays off there until somebody asks for it.
AUTO: Mapping[str, frozenset[str]] = {
    "modulation_tables": frozenset({"cpu"}),
    "fused_kernels": frozenset(),
    "compile_blocks": frozenset(),
    "overlap_frames": frozenset(),
    "cuda_graphs": frozenset(),
}
"""By switch, the platforms on which "auto" means on."""

_NOT_EAGER = ("compile_blocks", "cuda_graphs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceleration:
    """Switches are "auto", "on" or "off"; `is_on` reads them.

    modulation_tables: make all modulation tables of a schedule before its first step and keep their weights on the host.
    fused_kernels: Triton kernels between the matrix products.
    compile_blocks: compile the repeated blocks that a model declares. enforce_eager: neither compile nor record
        graphs, whatever those say.
    overlap_frames: decoded frames cross to the host while the next clip is decoded.
    cuda_graphs: replay the steps of small clips as one graph of the device.
    warm_up: run what is compiled once before the first request.
    vae_encode_precision: how the video VAE's convolutions compute when a clip is encoded, one of ENCODE_PRECISIONS.
    """

    modulation_tables: str = "auto"
    fused_kernels: str = "auto"
    compile_blocks: str = "auto"
    overlap_frames: str = "auto"
    cuda_graphs: str = "auto"
    enforce_eager: bool = False
    warm_up: bool = False
    vae_encode_precision: str = "float32"

    def is_on(self, switch: str, platform_name: str) -> bool:
        """Whether the switch of that name is on where the model runs."""
        if switch in _NOT_EAGER and self.enforce_eager:
            return False
        value: str = getattr(self, switch)
        return platform_name in AUTO[switch] if value == "auto" else value == "on"
