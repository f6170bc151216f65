"""omnireel: a serving engine for models that make pictures, video and sound. Its public names, and nothing else.

They are imported when first used, so that `import omnireel` and the command's help take no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnireel.api import AsyncOmni, Omni
    from omnireel.engine.result import GenerationResult
    from omnireel.errors import OmniReelError
    from omnireel.request import (
        DiffusionSamplingParams,
        GenerationRequest,
        MediaInput,
        MediaKind,
        MediaRef,
        OutputSpec,
        StepEvent,
    )

__all__ = [
    "AsyncOmni",
    "DiffusionSamplingParams",
    "GenerationRequest",
    "GenerationResult",
    "MediaInput",
    "MediaKind",
    "MediaRef",
    "Omni",
    "OmniReelError",
    "OutputSpec",
    "StepEvent",
    "__version__",
]

__version__ = "0.1.0"

_HOMES = {
    "AsyncOmni": "api",
    "DiffusionSamplingParams": "request",
    "GenerationRequest": "request",
    "GenerationResult": "engine.result",
    "MediaInput": "request",
    "MediaKind": "request",
    "MediaRef": "request",
    "Omni": "api",
    "OmniReelError": "errors",
    "OutputSpec": "request",
    "StepEvent": "request",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
