"""What makes a model faster without changing what it computes: which of it is on where, and compiling declared blocks.

Settings are read by rooms that must start without torch, so what needs torch is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from omnireel.acceleration.spec import Acceleration

if TYPE_CHECKING:
    from omnireel.acceleration.compile import compile_blocks, mark_dynamic

__all__ = ["Acceleration", "compile_blocks", "mark_dynamic"]


def __getattr__(name: str) -> Any:
    if name not in ("compile_blocks", "mark_dynamic"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.compile"), name)
