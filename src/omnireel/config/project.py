"""What a stage's backend is started with: the settled values as the keyword arguments that it knows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from omnireel.config.groups import GROUPS
from omnireel.config.values import settings_of
from omnireel.models.topology import ExecutionType

if TYPE_CHECKING:
    from omnireel.config.resolve import StageConfig

_ORDER = (
    "diffusion", "offload", "attention_flags", "acceleration_flags", "model", "language", "compilation", "load", "memory", "batch", "tokens", "run",
    "process", "placement",
)  # fmt: skip
_NOT_FORWARDED = (
    "default_sampling_params",
    "devices",
    "num_replicas",
    "env",
    "model_arch",
    "model_subdir",
    "tokenizer_subdir",
)
"""What the engine above a backend uses itself."""


def engine_arguments(stage: StageConfig, *, async_chunk: bool = False) -> dict[str, Any]:
    """Arguments by the backend's names, deep copies of what was said; None is left out, for it means the backend's own default.

    Explicit False and 0 are there. `model_arch` always is, also None, which leaves it to the checkpoint.
    """
    is_diffusion = stage.facts.execution_type is ExecutionType.DIFFUSION
    found: dict[str, Any] = {}
    for name in _ORDER:
        found |= _said(stage, name)
    found = {name: value for name, value in found.items() if name not in _NOT_FORWARDED}
    found["model_arch"] = stage.values["model_arch"] or stage.facts.model_arch
    if is_diffusion:
        found.setdefault("model_class_name", found["model_arch"])
    found |= (
        _of_topology(stage) | _said(stage, "handover") | _said(stage, "stages_flags") | {"async_chunk": async_chunk}
    )
    parallel = _said(stage, "parallel")
    found |= {"parallel_config": parallel} if is_diffusion else parallel
    found |= _quantization(stage, is_diffusion=is_diffusion)
    found["has_sampling_extra_args"] = bool((stage.compilation.default_sampling_params or {}).get("extra_args"))
    found |= _rooted(stage)
    return copy.deepcopy({name: value for name, value in found.items() if value is not None or name == "model_arch"})


def world_size(stage: StageConfig) -> int:
    """Ranks of one replica: PP x TP x SP x CFG x DP."""
    degrees = stage.parallel
    sequence = degrees.ulysses_degree * degrees.ring_degree * degrees.allgather_degree
    inner = degrees.pipeline_parallel_size * degrees.tensor_parallel_size * sequence * degrees.cfg_parallel_size
    return inner * (degrees.data_parallel_size or 1)


def _said(stage: StageConfig, group: str) -> dict[str, Any]:
    names = [item.name for item in settings_of(GROUPS[group].spec)]
    return {name: stage.values[name] for name in names if stage.values.get(name) is not None}


def _of_topology(stage: StageConfig) -> dict[str, Any]:
    facts = stage.facts
    return {
        "stage_id": stage.number,
        "model_stage": facts.name,
        "scheduler_cls": facts.scheduler_cls or None,
        "hf_config_name": facts.hf_config_name or None,
        "engine_output_type": facts.engine_output_type or None,
        "next_stage_processor": facts.input_processor or None,
        "retains_state_across_chunks": facts.retains_state_across_chunks,
    }


def _quantization(stage: StageConfig, *, is_diffusion: bool) -> dict[str, Any]:
    found = _said(stage, "quantization")
    text = found.pop("quantization", None)
    if text is not None and "quantization_config" not in found:
        found["quantization_config" if is_diffusion else "quantization"] = text
    return found


def _rooted(stage: StageConfig) -> Mapping[str, Any]:
    """The model's and the tokenizer's folders below the stage's root."""
    root, load = PurePosixPath(stage.model.model), stage.load
    found = {"model": str(root / stage.model.model_subdir) if stage.model.model_subdir else stage.model.model}
    if load.tokenizer_subdir:
        found["tokenizer"] = str(root / load.tokenizer_subdir)
    return found
