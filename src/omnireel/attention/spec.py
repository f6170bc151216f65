"""What a user may say about attention, as plain data; no torch here.

A layer has a role ("self", "minimax_h3.token_refiner") and a category, the broader class its role belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

AUTO = "AUTO"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The backend by name, in any case; "auto" says the same as no spec at all."""

    backend: str

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str):
            raise TypeError(f"an attention backend is named by a string, not by {type(self.backend).__name__}")
        object.__setattr__(self, "backend", self.backend.upper())


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Which backend serves which layer. The first that is set wins: role, category, default, the platform's own."""

    default: AttentionSpec | None = None
    per_role: Mapping[str, AttentionSpec] = field(default_factory=dict)

    def chosen(self, role: str, category: str) -> tuple[str, str] | None:
        """The name of the setting that decides and the backend it names; None leaves it to the platform."""
        candidates = (
            (f"attention.per_role.{role}", self.per_role.get(role)),
            (f"attention.per_role.{category}", self.per_role.get(category)),
            ("attention.default", self.default),
        )
        for setting, spec in candidates:
            if spec is not None and spec.backend != AUTO:
                return setting, spec.backend
        return None
