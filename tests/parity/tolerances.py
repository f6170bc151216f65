"""How far ours may be from the public reference: one table, each bound with its reason.

A bound of 0.0 means the same bits. Tests read it through `assert_close`, so that no bound hides in a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """`max_abs` bounds the largest difference of any value; `share` is the share of values that must keep it."""

    max_abs: float
    reason: str
    share: float = 1.0


TOLERANCES: Mapping[str, Tolerance] = {
    "layout": Tolerance(max_abs=0.0, reason="integers and float64 sums built in the same order"),
    "schedule": Tolerance(max_abs=0.0, reason="the same float32 operations in the same order"),
    "dit_float32": Tolerance(
        max_abs=1e-5,
        reason="the output heads see only their own rows, so the matrix product may block its sums otherwise",
    ),
    "dit_mixed": Tolerance(
        max_abs=1e-5,
        reason="bfloat16 blocks take the same operations in the same order; only the float32 heads differ as above",
    ),
    "vae": Tolerance(max_abs=1e-5, reason="the same operations; a matrix product may block its sums otherwise"),
    "vae_mixed": Tolerance(max_abs=1e-5, reason="the same operations in the same types"),
    "audio_vae": Tolerance(max_abs=3e-7, reason="the same operations; weights may be joined before or during"),
    "loop_latents": Tolerance(max_abs=1e-4, reason="the float32 bound of one evaluation, carried over a whole loop"),
    "loop_frames": Tolerance(max_abs=1 / 255, share=0.999, reason="a value on the edge of two levels may take either"),
    "loop_wave": Tolerance(max_abs=1e-4, reason="the decoder passes on what the latents differ by"),
}


def assert_close(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Fails when `ours` is not within the named bound of `theirs`, or differs in shape or dtype."""
    bound = TOLERANCES[name]
    assert ours.shape == theirs.shape, f"{name}: shape {tuple(ours.shape)} against {tuple(theirs.shape)}"
    assert ours.dtype == theirs.dtype, f"{name}: dtype {ours.dtype} against {theirs.dtype}"
    difference = (ours.double() - theirs.double()).abs()
    share = (difference <= bound.max_abs).double().mean().item()
    assert share >= bound.share, (
        f"{name}: {share:.6f} of values within {bound.max_abs:g}, largest difference {difference.max().item():g}"
    )
