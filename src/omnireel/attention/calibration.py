"""How much softmax may be skipped for a wanted sparsity, as a checkpoint's `sparse_attention_config` tells it.

The threshold's factor is a * exp(b * sparsity), with a and b measured on the model by whoever made the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

_FORMULA = "a*exp(b*target_sparsity)"
_ALGORITHM = "skip_softmax"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The coefficients, and patterns of layers that stay dense."""

    a: float
    b: float
    ignore: tuple[str, ...] = ()

    def factor(self, target_sparsity: float) -> float:
        """Of the threshold."""
        return self.a * math.exp(self.b * target_sparsity)

    def ignores(self, name: str) -> bool:
        """Whether the layer of that name, or what holds it, is one of those that stay dense."""
        return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for pattern in self.ignore)


def calibration_of(config: Mapping[str, Any]) -> Calibration | None:
    """What a transformer's config.json says; None when it says nothing.

    Raises:
        ValueError: it is of a formula that is not known, or has no numbers.
    """
    groups = (config.get("sparse_attention_config") or {}).get("config_groups") or {}
    found = [group for group in groups.values() if group.get("algorithm") == _ALGORITHM]
    if not found:
        return None
    told = found[0].get("threshold_scale_factor") or {}
    formula = str(told.get("formula", "")).replace(" ", "")
    if formula != _FORMULA:
        raise ValueError(f"skip-softmax is calibrated by {told.get('formula')!r}, known is {_FORMULA}")
    numbers = told.get("coefficients") or told.get("prefill") or {}
    try:
        a, b = float(numbers["a"]), float(numbers["b"])
    except (KeyError, TypeError, ValueError):
        raise ValueError("the skip-softmax calibration has no numbers a and b") from None
    return Calibration(a=a, b=b, ignore=tuple(found[0].get("ignore") or ()))
