"""The contract of an attention backend, and finding them: every file in `backends/` is one, there is no other list."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Protocol

from omnireel.attention import backends

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from omnireel.attention.metadata import AttentionMetadata


class AttentionBackend(Protocol):
    """One way to compute softmax(scale * q k^T) v. Stateless; a file in `backends/` holds one as `BACKEND`.

    Importing such a file imports no optional package and touches no device.
    """

    @property
    def name(self) -> str:
        """In capitals, as a user types it."""
        ...

    @property
    def platforms(self) -> tuple[str, ...] | None:
        """Names of the platforms it runs on; None for all."""
        ...

    @property
    def head_dims(self) -> tuple[int, ...]:
        """Channels of a head that it can take; empty for any."""
        ...

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Types of q, k and v that it can take; empty for any."""
        ...

    @property
    def package(self) -> str:
        """The optional package it needs, by import name; "" when torch is enough."""
        ...

    def available(self) -> str | None:
        """None when it can run here, else why not, as the end of the sentence "it is unavailable: ..."."""
        ...

    def forward(
        self,
        q_BSHD: Tensor,
        k_BSHD: Tensor,
        v_BSHD: Tensor,
        *,
        scale: float,
        causal: bool,
        metadata: AttentionMetadata,
    ) -> Tensor:
        """Attention inside each document of `metadata`. All tensors [B,S,H,D] (batch, rows, heads, channels)."""
        ...


def all_backends() -> tuple[AttentionBackend, ...]:
    """Every backend that has a file, usable here or not, ordered by name."""
    names = (module.name for module in pkgutil.iter_modules(backends.__path__))
    found = [importlib.import_module(f"{backends.__name__}.{name}").BACKEND for name in names]
    return tuple(sorted(found, key=lambda backend: backend.name))
