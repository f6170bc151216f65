"""What a user may say about speed, as plain data; no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SWITCH = ("auto", "on", "off")
ENCODE_PRECISIONS = ("float32", "tf32", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a switch is on somewhere, and why."""

    is_on: bool
    why: str


def _on(why: str) -> Verdict:
    return Verdict(is_on=True, why=why)


def _off(why: str) -> Verdict:
    return Verdict(is_on=False, why=why)


CPU, HOPPER = "cpu", "cuda 9.0"
"""Architectures: a platform's name, with the capability where it has any."""

AUTO: Mapping[str, Mapping[str, Verdict]] = {
    "modulation_tables": {CPU: _on("the same bits, made once a schedule")},
    "fused_kernels": {HOPPER: _on("measured: quicker steps than compiled blocks, values as near to float32")},
    "fused_vae": {},
    "compile_blocks": {HOPPER: _off("measured: fused kernels are quicker and need no start-up")},
    "compile_vae": {},
    "overlap_frames": {},
    "cuda_graphs": {},
}
"""What "auto" means by switch and architecture; benchmarks/results has the measurements. Elsewhere it means off."""

_NOT_SHARED = ("fused_kernels", "fused_vae", "overlap_frames", "compile_blocks", "compile_vae", "cuda_graphs")
"""What was not run where several ranks share a request."""

_SAID_BY = {"fused_vae": "fused_kernels"}
"""What is measured by itself and said with another."""

_NOT_EAGER = ("compile_blocks", "compile_vae", "cuda_graphs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceleration:
    """Switches are "auto", "on" or "off"; `verdict` reads them.

    modulation_tables: make all modulation tables of a schedule before its first step and keep their weights on the host.
    fused_kernels: Triton kernels between the matrix products of the denoiser; also, as `fused_vae`, of the video VAE.
    compile_blocks: compile the repeated blocks that a model declares. compile_vae: those of its video decoder.
    enforce_eager: neither compile nor record graphs, whatever those say.
    overlap_frames: decoded frames cross to the host while the next clip is decoded.
    cuda_graphs: replay the steps of small clips as one graph of the device.
    warm_up: run what is compiled once before the first request.
    vae_encode_precision: how the video VAE's convolutions compute when a clip is encoded, one of ENCODE_PRECISIONS.
    is_shared: several ranks compute each request.
    """

    modulation_tables: str = "auto"
    fused_kernels: str = "auto"
    compile_blocks: str = "auto"
    compile_vae: str = "auto"
    overlap_frames: str = "auto"
    cuda_graphs: str = "auto"
    enforce_eager: bool = False
    warm_up: bool = False
    vae_encode_precision: str = "float32"
    is_shared: bool = False

    def is_on(self, switch: str, platform_name: str, capability: str = "") -> bool:
        """Whether the switch of that name is on where the model runs."""
        return self.verdict(switch, platform_name, capability).is_on

    def verdict(self, switch: str, platform_name: str, capability: str = "") -> Verdict:
        """The same with its reason. capability: the maker's word for the device's generation."""
        if switch in _NOT_EAGER and self.enforce_eager:
            return _off("enforce_eager")
        said = _SAID_BY.get(switch, switch)
        value: str = getattr(self, said)
        if value != "auto":
            return Verdict(is_on=value == "on", why=f"{said} = {value}")
        # What is compiled on demand leaves nothing to fused kernels, and once meant the decoder too.
        if (
            switch in ("fused_kernels", "fused_vae", "compile_vae")
            and self.compile_blocks == "on"
            and not self.enforce_eager
        ):
            return Verdict(is_on=switch == "compile_vae", why="compile_blocks = on")
        if self.is_shared and switch in _NOT_SHARED:
            return _off("not run over several ranks")
        where = f"{platform_name} {capability}".strip()
        return AUTO[switch].get(where) or _off(f"not measured on {where}")
