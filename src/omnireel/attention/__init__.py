"""Attention: one layer, one metadata type, one way to choose a backend; each backend is a file in `backends/`.

Settings are read by rooms that must start without torch, so what needs torch is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from omnireel.attention.spec import AttentionConfig, AttentionSpec

if TYPE_CHECKING:
    from omnireel.attention.backend import AttentionBackend, Place, all_backends
    from omnireel.attention.calibration import Calibration, calibration_of
    from omnireel.attention.joint import JointTokens
    from omnireel.attention.layer import Attention
    from omnireel.attention.metadata import AttentionMetadata, VideoTokenLayout
    from omnireel.attention.select import select_backend, why_unavailable

__all__ = [
    "Attention",
    "AttentionBackend",
    "AttentionConfig",
    "AttentionMetadata",
    "AttentionSpec",
    "Calibration",
    "JointTokens",
    "Place",
    "VideoTokenLayout",
    "all_backends",
    "calibration_of",
    "select_backend",
    "why_unavailable",
]

_HOMES = {
    "Attention": "layer",
    "AttentionBackend": "backend",
    "AttentionMetadata": "metadata",
    "Calibration": "calibration",
    "JointTokens": "joint",
    "Place": "backend",
    "VideoTokenLayout": "metadata",
    "all_backends": "backend",
    "calibration_of": "calibration",
    "select_backend": "select",
    "why_unavailable": "select",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
