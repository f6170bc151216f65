"""Defaults that depend on the stage or its platform, and checks of values against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from omnireel.config.sources import Source
from omnireel.config.written import Said
from omnireel.errors import BadSetting, OmniReelError
from omnireel.models.topology import ExecutionType, StageFacts

if TYPE_CHECKING:
    from omnireel.config.resolve import StageConfig

_OF_TYPE: Mapping[ExecutionType, Mapping[str, Any]] = {
    ExecutionType.AR: {"async_scheduling": True},
    ExecutionType.GENERATION: {"disable_hybrid_kv_cache_manager": True, "enable_prefix_caching": False},
    ExecutionType.DIFFUSION: {},
}
_OF_PLATFORM: Mapping[str, Mapping[str, Any]] = {"rocm": {"attention_backend": "TRITON_ATTN"}}
"""For language models only: diffusion stages have an attention layer that asks the platform itself."""


def stage_rules(facts: StageFacts, platform: str) -> list[Said]:
    """What a stage has where nobody says anything, by its type, its media and its platform ("" where unknown)."""
    kind = facts.execution_type
    found = [_said(name, value, f"{kind} stage") for name, value in _OF_TYPE[kind].items()]
    if kind is not ExecutionType.DIFFUSION:
        found += [_said(name, value, platform) for name, value in _OF_PLATFORM.get(platform, {}).items()]
        if not facts.needs_media:
            found.append(_said("skip_mm_profiling", True, "stage without media"))
    return found


def check_values(
    values: dict[str, Any],
    sources: dict[str, Source],
    stages: tuple[StageConfig, ...],
    report: Callable[[OmniReelError], None],
) -> None:
    """Looks at values that depend on each other; switches async_chunk off in a pipeline of one stage."""
    for stage in stages:
        tokens, requests = stage.tokens.max_num_batched_tokens, stage.batch.max_num_seqs
        if tokens is not None and requests is not None and tokens < requests:
            source = str(stage.sources["max_num_batched_tokens"])
            report(BadSetting("max_num_batched_tokens", tokens, source, f"max_num_seqs is {requests}, which is more"))
        name = stage.process.worker_cls
        if name is not None and ("." not in name or not all(part.isidentifier() for part in name.split("."))):
            source = str(stage.sources["worker_cls"])
            report(BadSetting("worker_cls", name, source, "it must be package.module.Class of an installed package"))
        for variable, value in (stage.process.env or {}).items():
            if (
                not variable
                or "=" in variable
                or "\0" in f"{variable}{value}"
                or not isinstance(value, str | int | float)
            ):
                allowed = f"{variable!r} must be a name without = that has a text or a number"
                report(BadSetting("env", "***", str(stage.sources["env"]), allowed))
    if not values["async_chunk"]:
        return
    if len(stages) == 1:
        values["async_chunk"], sources["async_chunk"] = False, Source(kind="rule", name="pipeline of one stage")
        return
    producers = {source for stage in stages for source in stage.facts.inputs}
    source, hint = str(sources["async_chunk"]), "without it each stage begins when those that it reads from have ended"
    # Who takes first: what cannot begin early gains nothing from parts.
    for stage in stages:
        facts = stage.facts
        if facts.inputs and (len(facts.inputs) > 1 or not facts.takes_chunks):
            why = f": {facts.whole_because}" if facts.whole_because else ""
            allowed = f"stage {stage.number} ({facts.name}) cannot begin before its input is complete{why}"
            report(BadSetting("async_chunk", True, source, allowed, hint=hint))
    for stage in stages:
        if stage.number in producers and not stage.facts.chunk_processor:
            allowed = f"stage {stage.number} ({stage.facts.name}) cannot hand its output over in chunks"
            report(BadSetting("async_chunk", True, source, allowed, hint=hint))


def check_degrees(stage: StageConfig, report: Callable[[OmniReelError], None]) -> None:
    """Looks whether degrees fit each other."""
    said, product = stage.parallel.sequence_parallel_size, stage.parallel.num_ranks
    if said not in (None, product):
        allowed = f"ulysses_degree x ring_degree x allgather_degree is {product}"
        source, hint = str(stage.sources["sequence_parallel_size"]), "leave it out; it is only compared with them"
        report(BadSetting("sequence_parallel_size", said, source, allowed, hint=hint))
    tiles = stage.parallel.vae_patch_parallel_size
    if tiles not in (1, product):
        allowed = f"it must be 1, or the {product} rank{'' if product == 1 else 's'} of ulysses_degree"
        source, hint = str(stage.sources["vae_patch_parallel_size"]), "leave it out, or set --ulysses-degree"
        report(BadSetting("vae_patch_parallel_size", tiles, source, allowed, hint=hint))


def _said(name: str, value: Any, rule: str) -> Said:
    return Said(name=name, shown=name, value=value, source=Source(kind="rule", name=rule))
