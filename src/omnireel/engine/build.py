"""From settings to what runs: the checkpoint, the device, and the context that a pipeline is built from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from omnireel.engine.child import num_ranks, num_replicas
from omnireel.errors import BadSetting, UnsupportedDevice, nearest
from omnireel.models.discover import find_checkpoint, imported
from omnireel.models.hub import Hub
from omnireel.models.protocol import BuildContext, Checkpoint
from omnireel.parallel.ranks import why_not
from omnireel.platforms import find_device

if TYPE_CHECKING:
    from omnireel.config import ResolvedConfig
    from omnireel.models.protocol import ModelFacts
    from omnireel.parallel import Member
    from omnireel.platforms import Platform

logger = logging.getLogger(__name__)


def build_context(config: ResolvedConfig) -> tuple[BuildContext, int]:
    """The context and the index of the device; nothing is loaded.

    Raises:
        UnknownModel, BadCheckpoint: there is no such model.
        BadSetting, UnsupportedDevice: there is no such device here.
    """
    name, folder = config.model.model, config.model.model_subdir
    checkpoint: Checkpoint = find_checkpoint(
        name if folder is None else str(Path(name) / folder),
        task_type=config.model.task_type,
        hub=Hub(revision=config.model.revision, is_modelscope=config.model.use_modelscope),
        architecture=config.stages[0].facts.model_arch if len(config.stages) == 1 else None,
    )
    if len(config.stages) == 1:
        _check_roles(config, checkpoint)
    platform, index = find_device(config.model.device, is_here=not _is_by_ray(config))
    dtype = platform.default_dtype if config.model.dtype == "auto" else config.model.dtype
    context = BuildContext(
        checkpoint=checkpoint,
        platform=platform,
        device=str(platform.device(index)),
        dtype=dtype,
        attention=config.attention,
        validate_finite_tensors=config.run.validate_finite_tensors,
        is_profiled=config.run.enable_diffusion_pipeline_profiler,
        native_qkv_order=config.model.native_qkv_layout,
        acceleration=replace(config.acceleration, is_shared=config.stages[0].parallel.num_ranks > 1),
        is_decode_shared=config.stages[0].parallel.vae_patch_parallel_size > 1,
        chunk_processor=config.stages[0].facts.chunk_processor if config.stages_flags.async_chunk else "",
        prompt_embed_cache_size=config.run.prompt_embed_cache_size if config.run.enable_prompt_embed_cache else 0,
    )
    return context, index


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All that one replica of a model is made of, as it is sent to a process.

    stage: its stage, "" where there is one alone; rank: its number among the replicas; env: variables of its process. engine: settings that a recipe remembers, by name, to which the worker adds what
    only it knows; max_batch: requests a step; worker_cls: class of the worker, "" for the package's own.
    members: the devices of its ranks, where several processes compute a request together; member: which of them a process is.
    """

    context: BuildContext
    device_index: int
    engine: Mapping[str, Any]
    stage: str = ""
    rank: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    num_threads: int | None = None
    log_level: str = "warning"
    log_format: str = "text"
    max_batch: int = 1
    worker_cls: str = ""
    members: tuple[int, ...] = ()
    member: Member | None = None

    @property
    def name(self) -> str:
        """What errors and log lines call it."""
        return f"{self.stage}.{self.rank}" if self.stage else str(self.rank)

    def of_member(self, member: Member) -> WorkerSpec:
        """What one rank of it is made of."""
        index = self.members[member.rank]
        context = replace(self.context, device=str(self.context.platform.device(index)))
        return replace(self, context=context, device_index=index, member=member)


def worker_specs(config: ResolvedConfig) -> tuple[WorkerSpec, ...]:
    """What each replica is made of; see `build_context`. Each rank of it has a device of its own, but on a CPU.

    Raises:
        UnsupportedDevice: there are fewer devices than ranks, or not those that were named.
        BadSetting: the model does not take as many requests a step as are asked for, its heads cannot be shared by as many ranks, or
            the devices are none.
    """
    context, first = build_context(config)
    facts, max_batch = context.checkpoint.facts, config.batch.max_num_seqs or 1
    if max_batch > facts.max_batch:
        allowed = f"{facts.name} takes {facts.max_batch} a step"
        raise BadSetting("max_num_seqs", max_batch, str(config.sources["max_num_seqs"]), allowed)
    if max_batch == 1:
        _tell_alone(config, facts)
    ranks = num_ranks(config)
    if ranks > 1:
        _check_ranks(config, context, ranks)
    by_role = config.values["diffusion_attention_config"]
    engine = {
        **({} if by_role is None else {"diffusion_attention_config": by_role}),
        "device": context.platform.name,
        "dtype": context.dtype,
        "diffusion_attention_backend": config.values["diffusion_attention_backend"],
        **_speed(context),
        **({"ulysses_degree": ranks, "ulysses_mode": config.values["ulysses_mode"]} if ranks > 1 else {}),
    }
    indices = _indices(config, context.platform, first)
    return tuple(
        WorkerSpec(
            context=replace(context, device=str(context.platform.device(indices[rank * ranks]))),
            device_index=indices[rank * ranks],
            engine=engine,
            stage=config.stages[0].facts.name if len(config.topology.stages) > 1 else "",
            rank=rank,
            env=_variables(config),
            num_threads=config.run.num_threads,
            log_level=config.run.log_level,
            log_format=config.run.log_format,
            max_batch=max_batch,
            worker_cls=config.process.worker_cls or "",
            members=tuple(indices[rank * ranks : (rank + 1) * ranks]) if ranks > 1 else (),
        )
        for rank in range(len(indices) // ranks)
    )


def _tell_alone(config: ResolvedConfig, facts: ModelFacts) -> None:
    """Settings of batches change nothing where there are none; scripts of other servers have them for any model."""
    why = f"{facts.name} takes one request a step" if facts.max_batch == 1 else "max_num_seqs is 1"
    stage = config.stages[0]
    for name in ("step_execution", "request_batch_max_wait_ms"):
        if stage.values.get(name):
            logger.warning("%s (from %s) changes nothing: %s", name, stage.sources[name], why)


def _check_ranks(config: ResolvedConfig, context: BuildContext, ranks: int) -> None:
    """Whether so many can share the model's requests, before anything is loaded."""
    checkpoint, platform = context.checkpoint, context.platform
    facts, source = checkpoint.facts, str(config.sources["ulysses_degree"])
    problem = why_not(platform.traits.collectives)
    if problem:
        raise UnsupportedDevice(f"{platform.traits.collectives} for ranks on {platform.name}", problem)
    if not facts.shared_heads:
        allowed = f"{facts.name} runs each request in one process; more copies of it are num_replicas"
        raise BadSetting("ulysses_degree", ranks, source, allowed)
    if config.stages[0].parallel.vae_patch_parallel_size > 1 and not facts.can_share_decode:
        name = "vae_patch_parallel_size"
        raise BadSetting(name, ranks, str(config.sources[name]), f"{facts.name} decodes in one process")
    heads: int = imported(facts.shared_heads)(checkpoint)
    if config.stages[0].parallel.ulysses_mode == "advanced_uaa" and ranks <= heads:
        return
    if heads % ranks:
        fitting = ", ".join(str(count) for count in range(1, heads + 1) if heads % count == 0)
        allowed = f"it must divide the {heads} attention heads of {checkpoint.name}: {fitting}"
        hint = "" if ranks > heads else "--ulysses-mode advanced_uaa gives some ranks one head more than others"
        raise BadSetting("ulysses_degree", ranks, source, allowed, hint=hint)


def _check_roles(config: ResolvedConfig, checkpoint: Checkpoint) -> None:
    """A role that no layer has would choose nothing, and nobody would notice."""
    roles = checkpoint.facts.attention_roles
    known = sorted({*roles, *roles.values()})
    for name in config.attention.per_role if known else ():
        if name not in known:
            source = str(config.sources["diffusion_attention_config"])
            close = nearest(name, known)
            allowed = f"{checkpoint.facts.name} has the roles and categories {', '.join(known)}"
            hint = f"did you mean {close!r}?" if close else ""
            raise BadSetting("diffusion_attention_config.per_role", name, source, allowed, hint=hint)


def _speed(context: BuildContext) -> dict[str, str]:
    """What of acceleration is on and moves a result, by a rounding or by more."""
    on = {name: "on" for name in ("compile_blocks", "compile_vae", "fused_kernels") if context.has(name)}
    precision = context.acceleration.vae_encode_precision
    return on if precision == "float32" else {**on, "vae_encode_precision": precision}


def _variables(config: ResolvedConfig) -> dict[str, str]:
    """`env` as a process takes it."""
    return {name: str(value) for name, value in (config.process.env or {}).items()}


def _indices(config: ResolvedConfig, platform: Platform, first: int) -> list[int]:
    """The device of each rank of each replica."""
    replicas = num_replicas(config) * num_ranks(config)
    if _is_by_ray(config):
        _check_unnumbered(config, first)
        return [0] * replicas
    here, named = len(platform.devices()), config.process.devices
    if named is None:
        is_shared = platform.name == "cpu"
        indices = [first if is_shared else first + replica for replica in range(replicas)]
    else:
        what = "replica" if num_ranks(config) == 1 else "rank of each replica"
        words = [word.strip() for word in named.split(",")]
        if not all(word.isdecimal() for word in words) or len(set(words)) < len(words) or len(words) != replicas:
            allowed = f"it must name {replicas} device{'' if replicas == 1 else 's'} by different indices, one a {what}"
            raise BadSetting("devices", named, str(config.sources["devices"]), allowed)
        indices = [int(word) for word in words]
    if max(indices) >= here:
        hint = "" if num_ranks(config) == 1 else "each rank of --ulysses-degree takes one"
        raise UnsupportedDevice(f"devices {', '.join(map(str, indices))} of {platform.name}", f"{here}", hint=hint)
    return indices


def _is_by_ray(config: ResolvedConfig) -> bool:
    """Whether another program picks machine and device, and shows a worker no other one."""
    return config.process.distributed_executor_backend == "ray"


def _check_unnumbered(config: ResolvedConfig, first: int) -> None:
    for name, value in (("devices", config.process.devices), ("device", config.model.device if first else None)):
        if value is not None:
            raise BadSetting(name, value, str(config.sources[name]), "Ray chooses the devices, so name only their kind")


def engine_facts(spec: WorkerSpec) -> Mapping[str, Any]:
    """What of the engine a recipe remembers, by the names of its settings: whatever can move a result by a rounding.

    Called on the thread that computes: torch counts its threads for each one, and they are set here.
    """
    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    elif spec.member is not None and spec.context.platform.name == "cpu":
        # The cores are shared, as the work is.
        torch.set_num_threads(max(1, torch.get_num_threads() // spec.member.size))
    device_name = spec.context.platform.devices()[spec.device_index].name
    return {**spec.engine, "device_name": device_name, "num_threads": torch.get_num_threads()}
