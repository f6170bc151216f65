"""Every spec of the house, the stages that own it, and how its settings are found by any of their names.

A spec is added by one line in `Specs` and one in `GROUPS`; flags, variables, YAML keys, schema and docs follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from omnireel.acceleration import Acceleration
from omnireel.attention.spec import AttentionConfig
from omnireel.config import planned
from omnireel.config.spec import (
    AccelerationSpec,
    AttentionFlags,
    BatchSpec,
    ModelSpec,
    ProcessSpec,
    RunSpec,
    ServerSpec,
)
from omnireel.config.stages import StagesSpec
from omnireel.config.values import Setting, settings_of
from omnireel.models.topology import ExecutionType
from omnireel.parallel.spec import ParallelSpec

_LM = (ExecutionType.AR, ExecutionType.GENERATION)
_DIFFUSION = (ExecutionType.DIFFUSION,)
_ALL = (*_LM, *_DIFFUSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """The settings of a pipeline or of one of its stages, by the spec that declares them."""

    model: ModelSpec
    attention: AttentionConfig
    attention_flags: AttentionFlags
    acceleration: Acceleration
    acceleration_flags: AccelerationSpec
    run: RunSpec
    server: ServerSpec
    stages_flags: StagesSpec
    batch: BatchSpec
    process: ProcessSpec
    language: planned.LanguageSpec
    load: planned.LoadSpec
    memory: planned.MemorySpec
    tokens: planned.TokenSpec
    handover: planned.HandoverSpec
    placement: planned.PlacementSpec
    parallel: ParallelSpec
    quantization: planned.QuantizationSpec
    offload: planned.OffloadSpec
    diffusion: planned.DiffusionSpec
    compilation: planned.CompileSpec
    pipeline: planned.PipelineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One spec. `owners`: execution types whose stages have it, none for the pipeline as a whole; a field may narrow that.

    section: the YAML key below which its fields may stand too.
    """

    spec: type
    title: str
    owners: tuple[str, ...] = field(default=_ALL)
    section: str = ""


GROUPS: Mapping[str, Group] = {
    "model": Group(spec=ModelSpec, title="model"),
    "attention_flags": Group(spec=AttentionFlags, title="attention", owners=_DIFFUSION),
    "acceleration_flags": Group(spec=AccelerationSpec, title="speed", owners=_DIFFUSION),
    "run": Group(spec=RunSpec, title="running"),
    "server": Group(spec=ServerSpec, title="server", owners=()),
    "stages_flags": Group(spec=StagesSpec, title="stages"),
    "batch": Group(spec=BatchSpec, title="batches"),
    "process": Group(spec=ProcessSpec, title="processes"),
    "language": Group(spec=planned.LanguageSpec, title="language models", owners=_LM),
    "load": Group(spec=planned.LoadSpec, title="loading"),
    "memory": Group(spec=planned.MemorySpec, title="memory of language models", owners=_LM),
    "tokens": Group(spec=planned.TokenSpec, title="tokens"),
    "handover": Group(spec=planned.HandoverSpec, title="hand-over between stages"),
    "placement": Group(spec=planned.PlacementSpec, title="placement"),
    "parallel": Group(spec=ParallelSpec, title="parallelism", section="parallel_config"),
    "quantization": Group(spec=planned.QuantizationSpec, title="quantisation"),
    "offload": Group(spec=planned.OffloadSpec, title="offloading", owners=_DIFFUSION),
    "diffusion": Group(spec=planned.DiffusionSpec, title="diffusion", owners=_DIFFUSION),
    "compilation": Group(spec=planned.CompileSpec, title="compilation and sampling"),
    "pipeline": Group(spec=planned.PipelineSpec, title="pipeline", owners=()),
}
"""By attribute of `Specs`, in order of help texts and pages."""

SECTIONS: Mapping[str, str] = {group.section: name for name, group in GROUPS.items() if group.section}


@cache
def all_settings() -> Mapping[str, Setting]:
    """Every setting by name, also those of features that do not exist yet, in order of declaration."""
    return {item.name: item for group in GROUPS.values() for item in settings_of(group.spec)}


@cache
def engine_settings() -> Mapping[str, Setting]:
    """Every setting that can be set, by name, in order of declaration."""
    return {name: item for name, item in all_settings().items() if not item.pending}


@cache
def owners() -> Mapping[str, tuple[str, ...]]:
    """Execution types that have a setting, by its name; none for one of the pipeline as a whole."""
    return {
        item.name: group.owners if item.stages is None else tuple(kind for kind in group.owners if kind in item.stages)
        for group in GROUPS.values()
        for item in settings_of(group.spec)
    }


@cache
def names() -> Mapping[str, tuple[str, bool]]:
    """What may be written for a setting: its name, and whether that means the opposite."""
    found = {name: (name, False) for name in all_settings()}
    for item in all_settings().values():
        for alias in item.aliases:
            found[alias.lstrip("!")] = (item.name, alias.startswith("!"))
    return found


@cache
def members(section: str) -> tuple[str, ...]:
    """Names of the settings that may stand below a section."""
    return tuple(item.name for item in settings_of(GROUPS[SECTIONS[section]].spec))
