"""Checkpoint files: what they hold, strict loading through memory maps, and their fingerprint. Knows no model.

Rooms that must start without torch look into checkpoints, so what needs torch is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from omnireel.weights.digest import weights_digest
from omnireel.weights.index import ComponentFiles, TensorEntry, read_index, read_json

if TYPE_CHECKING:
    from omnireel.weights.load import Part, build_empty, load_component

__all__ = [
    "ComponentFiles",
    "Part",
    "TensorEntry",
    "build_empty",
    "load_component",
    "read_index",
    "read_json",
    "weights_digest",
]


def __getattr__(name: str) -> Any:
    if name not in ("Part", "build_empty", "load_component"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("omnireel.weights.load"), name)
