"""What every spelling of the kernels is given, and the oracle's answers. Letters as in `kernels.contract`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from omnireel.layers import PLAIN, Kernels, RMSNorm, RotaryTable, TableRows


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sizes: batch, rows, hidden, table rows, heads, channels of a head, turned pairs."""

    batch: int = 2
    rows: int = 7
    hidden: int = 24
    table: int = 5
    heads: int = 3
    dim: int = 16
    pairs: int = 6


CASES = {
    "small": Case(),
    "odd widths": Case(hidden=37, heads=1, dim=12, pairs=6),
    "powers of two": Case(batch=1, rows=33, hidden=64, heads=4, dim=32, pairs=12),
    "one row": Case(batch=1, rows=1, table=1),
}


def inputs(case: Case, dtype: torch.dtype, device: str = "cpu") -> dict[str, Any]:
    rng = torch.Generator().manual_seed(case.rows)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng).to(device, dtype)

    index = torch.randint(case.table, (case.rows,), generator=rng)
    tables = draw(case.table, 6, case.hidden)
    angles = 3 * torch.randn(case.rows, 1, case.pairs, generator=rng)
    return {
        "x": draw(case.batch, case.rows, case.hidden),
        "y": draw(case.batch, case.rows, case.hidden),
        "norm": filled(RMSNorm(case.hidden, eps=1e-5), draw(case.hidden)),
        # Rows of one wide table, as a model has them.
        "gate": tables[:, 2],
        "scale": tables[:, 1],
        "shift": tables[:, 0],
        "rows": TableRows.of(index, torch.device(device)),
        "packed": draw(case.batch, case.rows, 3, case.heads, case.dim),
        "head_norm": filled(RMSNorm(case.dim, eps=1e-5), draw(case.dim)),
        "rotary": RotaryTable(cos=angles.cos().to(device, dtype), sin=angles.sin().to(device, dtype)),
        "fused": draw(case.batch, case.rows, 2 * case.hidden),
    }


def filled(norm: RMSNorm, weight: Tensor) -> RMSNorm:
    norm.weight = torch.nn.Parameter(weight, requires_grad=False)
    return norm


def norm_modulate(kernels: Kernels, given: dict[str, Any]) -> list[Tensor]:
    return [kernels.norm_modulate(given["x"], given["norm"], given["scale"], given["shift"], given["rows"])]


def gate_add(kernels: Kernels, given: dict[str, Any]) -> list[Tensor]:
    kernels.gate_add_(given["x"], given["y"], given["gate"], given["rows"])
    return [given["x"]]


def gate_add_norm_modulate(kernels: Kernels, given: dict[str, Any]) -> list[Tensor]:
    names = ("x", "y", "gate", "norm", "scale", "shift", "rows")
    return [kernels.gate_add_norm_modulate_(*(given[name] for name in names)), given["x"]]


def norm_rotate(kernels: Kernels, given: dict[str, Any]) -> list[Tensor]:
    """Of the middle part of a packed projection, whose other parts must be left alone."""
    packed = given["packed"]
    before, middle, after = packed.unbind(2)
    outer = [before.clone(), after.clone()]
    out = kernels.norm_rotate(middle, given["head_norm"], given["rotary"])
    assert torch.equal(before, outer[0])
    assert torch.equal(after, outer[1])
    return [out]


def norm_alone(kernels: Kernels, given: dict[str, Any]) -> list[Tensor]:
    return [kernels.norm_rotate(given["packed"][:, :, 1], given["head_norm"], None)]


def swiglu(kernels: Kernels, given: dict[str, Any]) -> list[Tensor]:
    return [kernels.swiglu(given["fused"])]


def scale_add_norm(kernels: Kernels, given: dict[str, Any]) -> list[Tensor]:
    """Of a float32 stream, whatever the type of what is added."""
    stream, weight = given["x"].float(), given["norm"].weight
    return [kernels.scale_add_norm_(stream, given["y"], given["scale"][0].float(), weight.float(), 1e-5), stream]


Operation = Callable[[Kernels, dict[str, Any]], list[Tensor]]

OPERATIONS: dict[str, Operation] = {
    operation.__name__: operation
    for operation in (norm_modulate, gate_add, gate_add_norm_modulate, norm_rotate, norm_alone, swiglu, scale_add_norm)
}


def compare(
    kernels: Kernels, operation: Operation, case: Case, dtype: torch.dtype, device: str = "cpu"
) -> list[tuple[Tensor, Tensor]]:
    """Pairs of an answer and the oracle's."""
    ours, plain = (operation(each, inputs(case, dtype, device)) for each in (kernels, PLAIN))
    return list(zip(ours, plain, strict=True))


def assert_near(ours: Tensor, plain: Tensor) -> None:
    """Within the last bits: a sum in another order moves a rounding here and there."""
    assert ours.shape == plain.shape
    assert ours.dtype == plain.dtype
    bound = {torch.float32: 2e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}[plain.dtype]
    difference = (ours.double() - plain.double()).abs() / plain.double().abs().clamp(min=1.0)
    assert difference.max() <= bound
    if plain.dtype is not torch.float32:
        assert (difference > 0).double().mean() < 0.25
