"""Evaluations of small clips as recorded graphs; large ones are computed longer than they are queued, and go their own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from omnireel.acceleration.graphs import Graphs
from omnireel.errors import UnsupportedDevice
from omnireel.layers import RotaryTable, TableRows
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, StepPlan, StepTables

if TYPE_CHECKING:
    from omnireel.models.protocol import BuildContext

MAX_ROWS = 8192
"""Packed rows up to which a step is recorded. The released sizes begin above it; a graph keeps the memory of its step."""

Evaluate: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
"""See `MiniMaxH3Transformer.evaluate`."""


def evaluations(
    transformers: Mapping[str, MiniMaxH3Transformer], context: BuildContext, index: int
) -> dict[str, Evaluate]:
    """By DiT, what evaluates it: with graphs where they are on.

    Raises:
        UnsupportedDevice: they are asked for where there are none.
    """
    platform = context.platform
    # Auto gives way to ranks, of whom a recorded step could not wait; said by hand, both are refused earlier.
    if not context.has("cuda_graphs") or context.ranks is not None:
        return {name: transformer.evaluate for name, transformer in transformers.items()}
    if not platform.traits.has_graphs:
        raise UnsupportedDevice("a device that can record graphs, for cuda_graphs", platform.name)
    # One memory of shapes for all: they take turns anyway.
    graphs = Graphs(partial(platform.capture, index=index))
    return {name: partial(_graphed, graphs, transformer) for name, transformer in transformers.items()}


def _graphed(
    graphs: Graphs,
    transformer: MiniMaxH3Transformer,
    video_rows_BNC: Tensor,
    audio_rows_BNC: Tensor,
    text_BLH_refined: Tensor,
    *,
    plan: StepPlan,
    rotary: RotaryTable,
    indices: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    rows = video_rows_BNC, audio_rows_BNC, text_BLH_refined
    # What a backend is told of the step are integers that a graph would keep for good.
    if rotary.num_rows > MAX_ROWS or plan.attention is not None:
        return transformer.evaluate(*rows, plan=plan, rotary=rotary, indices=indices)
    tables = (plan.timesteps,) if plan.tables is None else (*plan.tables.blocks, plan.tables.out)
    inputs = *rows, rotary.cos, rotary.sin, *indices, plan.rows.index, plan.out_rows.index, *tables
    key = id(transformer), plan.rows.segments, plan.out_rows.segments, plan.tables is None
    video, audio = graphs.run(key, partial(_evaluate, transformer, plan), inputs)
    return video, audio


def _evaluate(
    transformer: MiniMaxH3Transformer,
    plan: StepPlan,
    video: Tensor,
    audio: Tensor,
    text: Tensor,
    cos: Tensor,
    sin: Tensor,
    *rest: Tensor,
) -> tuple[Tensor, Tensor]:
    """An evaluation as a function of tensors; of `plan`, only what the host knows is read."""
    indices, (row_index, out_index), tables = rest[:3], rest[3:5], rest[5:]
    told = StepPlan(
        timesteps=plan.timesteps if plan.tables is not None else tables[0],
        rows=TableRows(segments=plan.rows.segments, index=row_index),
        out_rows=TableRows(segments=plan.out_rows.segments, index=out_index),
        tables=None if plan.tables is None else StepTables(blocks=tables[:-1], out=tables[-1]),
    )
    return transformer.evaluate(
        video,
        audio,
        text,
        plan=told,
        rotary=RotaryTable(cos=cos, sin=sin),
        indices=(indices[0], indices[1], indices[2]),
    )
