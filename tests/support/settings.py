"""Values and pipelines for tests of settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from omnireel.config import Setting, owners
from omnireel.models.topology import ExecutionType, StageFacts, Topology


def two_values(item: Setting):  # noqa: PLR0911  a case for each kind
    """Two allowed values that differ from each other and, where that can be, from the default."""
    if item.name == "diffusion_attention_config":
        return {"default": {"backend": "A"}}, {"default": {"backend": "B"}}
    if item.name == "env":
        return {"A": "1"}, {"B": 2}
    if item.name == "worker_cls":
        return "one.Worker", "two.Worker"
    if item.kind is bool:
        return True, False
    if item.choices:
        return item.choices[-1], item.choices[-2]
    if item.kind in (int, float):
        low = item.minimum if item.minimum is not None else item.above or 0
        high = item.maximum if item.maximum is not None else low + 4
        values = (low + (high - low) / 2, low + (high - low) / 4)
        return tuple(item.kind(value) for value in values)
    if item.kind is Mapping:
        return {"a": 1}, {"b": [2, None]}
    if item.kind is tuple:
        return ("a", "b"), ("c",)
    if item.kind is Path:
        return Path("a.x"), Path("b.x")
    return "one", "two"


def one_stage(kind: str, **facts) -> Topology:
    """A pipeline of one stage."""
    stage = StageFacts(name="only", execution_type=ExecutionType(kind), final_output="text", **facts)
    return Topology(name="one", stages=(stage,))


def pipeline(**facts) -> Topology:
    """A language model, a codec, and a diffusion model behind them."""
    return Topology(
        name="three",
        stages=(
            StageFacts(name="thinker", execution_type=ExecutionType.AR, **facts),
            StageFacts(
                name="codec",
                execution_type=ExecutionType.GENERATION,
                inputs=(0,),
                final_output="audio",
                takes_chunks=True,
            ),
            StageFacts(
                name="painter",
                execution_type=ExecutionType.DIFFUSION,
                inputs=(0,),
                final_output="video",
                takes_chunks=True,
            ),
        ),
    )


def kind_of(name: str) -> str:
    """A type of stage that has the setting; a diffusion stage for what is of the pipeline."""
    return str((*owners()[name], "diffusion")[0])
