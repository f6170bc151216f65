"""What a user may say about attention, as plain data; no torch here.

A layer has a role ("self", "minimax_h3.token_refiner") and a category, the broader class its role belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from omnireel.attention.options import AttnQuantSpec, BlockSparseSpec, SkipSoftmaxSpec

AUTO = "AUTO"

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "skip_softmax": ("TRTLLM_ATTN",),
    "quant": ("TRTLLM_ATTN", "FLASHINFER_ATTN"),
    "block_sparse": ("RAINFUSION_ATTN",),
}
"""By option, the backends that take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The backend by name, in any case, and its options; "auto" says the same as no spec at all."""

    backend: str
    skip_softmax: SkipSoftmaxSpec | None = None
    quant: AttnQuantSpec | None = None
    block_sparse: BlockSparseSpec | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str):
            raise TypeError(f"an attention backend is named by a string, not by {type(self.backend).__name__}")
        object.__setattr__(self, "backend", self.backend.upper())
        for option, backends in OPTIONS.items():
            if getattr(self, option) is not None and self.backend not in backends:
                raise ValueError(f"{option} is an option of {' and '.join(backends)}, not of {self.backend}")
        if self.block_sparse is None and self.backend in OPTIONS["block_sparse"]:
            object.__setattr__(self, "block_sparse", BlockSparseSpec())

    def lowered(self) -> Mapping[str, Any] | None:
        """The options as one flat mapping for the backend; None where there are none."""
        flat: dict[str, Any] = {}
        for option in OPTIONS:
            chosen = getattr(self, option)
            if chosen is not None:
                flat |= {name: value for name, value in asdict(chosen).items() if value is not None}
        layers = flat.pop("skip_layers", None)
        if layers:
            flat["skip_layers"] = sorted(layers)
        return flat or None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Which backend serves which layer. The first that is set wins: role, category, default, the platform's own."""

    default: AttentionSpec | None = None
    per_role: Mapping[str, AttentionSpec] = field(default_factory=dict)

    def chosen(self, role: str, category: str) -> tuple[str, AttentionSpec] | None:
        """The name of the setting that decides and what it says; None leaves it to the platform."""
        candidates = (
            (f"attention.per_role.{role}", self.per_role.get(role)),
            (f"attention.per_role.{category}", self.per_role.get(category)),
            ("attention.default", self.default),
        )
        for setting, spec in candidates:
            if spec is not None and spec.backend != AUTO:
                return setting, spec
        return None
