"""The work between two matrix products, in three spellings with one contract.

`PLAIN` is what the reference computes, operation by operation: the oracle, and what a CPU runs. `TRACEABLE` says the same
in terms that a compiler can fuse, whatever the layout of the rows. `fused()` gives Triton kernels that read and write each
value once. All round where the reference rounds, so they differ by the order of a sum at most.
"""

from __future__ import annotations

import importlib
import importlib.util

from omnireel.layers.kernels.contract import Kernels
from omnireel.layers.kernels.plain import PLAIN
from omnireel.layers.kernels.traceable import TRACEABLE

__all__ = ["PLAIN", "TRACEABLE", "Kernels", "fused", "why_not_fused"]


def why_not_fused() -> str | None:
    """None when Triton is there, else why it is not, as the end of a sentence."""
    return None if importlib.util.find_spec("triton") else "the package triton is not installed"


def fused() -> Kernels:
    """The Triton kernels. Their file is imported here and nowhere else, for it needs the package.

    Raises:
        ImportError: Triton is not installed.
    """
    made: Kernels = importlib.import_module("omnireel.layers.kernels.fused").FUSED
    return made
