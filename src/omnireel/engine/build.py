"""From settings to what runs: the checkpoint, the device, and the context that a pipeline is built from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from omnireel.models.discover import find_checkpoint
from omnireel.models.hub import Hub
from omnireel.models.protocol import BuildContext, Checkpoint
from omnireel.platforms import find_device

if TYPE_CHECKING:
    from omnireel.config import ResolvedConfig


def build_context(config: ResolvedConfig) -> tuple[BuildContext, int]:
    """The context and the index of the device; nothing is loaded.

    Raises:
        UnknownModel, BadCheckpoint: there is no such model.
        BadSetting, UnsupportedDevice: there is no such device here.
    """
    checkpoint: Checkpoint = find_checkpoint(
        config.model.model,
        task_type=config.model.task_type,
        hub=Hub(revision=config.model.revision, is_modelscope=config.model.use_modelscope),
        architecture=config.stages[0].facts.model_arch if len(config.stages) == 1 else None,
    )
    platform, index = find_device(config.model.device)
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
        acceleration=config.acceleration,
        prompt_embed_cache_size=config.run.prompt_embed_cache_size if config.run.enable_prompt_embed_cache else 0,
    )
    return context, index


def engine_facts(config: ResolvedConfig, context: BuildContext, index: int) -> Mapping[str, Any]:
    """What of the engine a recipe remembers, by the names of its settings: whatever can move a result by a rounding.

    Called on the thread that computes: torch counts its threads for each one.
    """
    by_role = config.values["diffusion_attention_config"]
    return {
        **({} if by_role is None else {"diffusion_attention_config": by_role}),
        "device": context.platform.name,
        "device_name": context.platform.devices()[index].name,
        "dtype": context.dtype,
        "diffusion_attention_backend": config.values["diffusion_attention_backend"],
        "num_threads": torch.get_num_threads(),
    }
