"""Settings of features that do not exist yet, or only for stages that no backend runs yet: fields are `pending`.

They have their names, types and owners now, so that scripts of other servers get an answer and topologies can be checked.
Who builds a feature deletes the mark `pending` and moves the spec beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnireel.request import setting

_LM = ("ar", "generation")
_DIFFUSION = ("diffusion",)
_ENGINE = "a language-model engine"
_KV = "a model that gives or takes key and value caches"
_ALONE = "stages that are started by themselves"


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageSpec:
    """What a language-model stage runs, beyond `ModelSpec`."""

    attention_backend: str | None = setting(None, "attention backend of a language model", pending=_ENGINE)
    moe_backend: str | None = setting(None, "backend of its experts", pending=_ENGINE, idle=("auto",))
    hf_overrides: Mapping[str, Any] | None = setting(None, "changes to the checkpoint's config", pending=_ENGINE)
    logits_processors: tuple[str, ...] | None = setting(None, "processors of the logits", pending=_ENGINE)
    limit_mm_per_prompt: Mapping[str, Any] | None = setting(None, "media a prompt may hold, by kind", pending=_ENGINE)
    active_stream_window: int = setting(0, "streams that are active at a time", minimum=0, pending=_ENGINE)
    duplex_max_sessions: int = setting(1, "two-way sessions at a time", minimum=1, pending=_ENGINE)
    subtalker_sampling_params: Mapping[str, Any] | None = setting(
        None, "sampling of a speech model's inner model", pending="speech models"
    )
    custom_voice_dir: str | None = setting(None, "folder of voices", metavar="DIR", pending="speech models")
    codec_frame_rate_hz: float | None = setting(
        None, "frames a second of an audio codec", unit="Hz", above=0, pending="speech models"
    )
    enable_flashinfer_autotune: bool | None = setting(
        None, "let FlashInfer measure its kernels at start-up", pending=_ENGINE
    )
    max_cudagraph_capture_size: int | None = setting(
        None, "largest batch that is captured as a CUDA graph", minimum=0, pending="CUDA graphs", idle=(0,)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """Where weights and tokenizers come from and how they are read."""

    model_arch: str | None = setting(
        None, "class that runs, instead of the checkpoint's", pending="a choice of classes"
    )
    model_class_name: str | None = setting(
        None, "pipeline class, instead of the checkpoint's", stages=_DIFFUSION, pending="a choice of classes"
    )
    tokenizer: str | None = setting(None, "tokenizer, where it is not the model's", stages=_LM, pending=_ENGINE)
    tokenizer_subdir: str | None = setting(
        None, "folder of the tokenizer below the model's root", pending="tokenizers outside of their model"
    )
    tokenizer_revision: str | None = setting(None, "revision of the tokenizer", pending=_ENGINE)
    code_revision: str | None = setting(None, "revision of a checkpoint's code", pending="code from checkpoints")
    tokenizer_mode: str | None = setting(None, "kind of tokenizer", stages=_LM, pending=_ENGINE, idle=("auto",))
    skip_tokenizer_init: bool = setting(False, "load no tokenizer", stages=_LM, pending=_ENGINE)
    config_format: str | None = setting(None, "format of the checkpoint's config", stages=_LM, pending=_ENGINE)
    skip_mm_profiling: bool | None = setting(
        None, "measure memory without media at start-up", stages=_LM, pending=_ENGINE
    )
    load_format: str | None = setting(
        None, "format of the weights", stages=_LM, pending=_ENGINE, idle=("auto", "safetensors")
    )
    diffusion_load_format: str = setting(
        "default",
        "where a pipeline's weights come from",
        choices=("default", "dummy", "custom_pipeline", "diffusers"),
        stages=_DIFFUSION,
        pending="another load format",
    )
    diffusers_load_kwargs: Mapping[str, Any] | None = setting(
        None, "arguments of diffusers' loader", stages=_DIFFUSION, pending="the diffusers adapter"
    )
    diffusers_call_kwargs: Mapping[str, Any] | None = setting(
        None, "arguments of each diffusers call", stages=_DIFFUSION, pending="the diffusers adapter"
    )
    download_dir: str | None = setting(None, "folder of downloads", metavar="DIR", pending="a download folder")
    enable_multithread_weight_load: bool = setting(
        True, "read weights on several threads", stages=_DIFFUSION, pending="loading on one thread"
    )
    num_weight_load_threads: int | None = setting(
        None, "threads that read weights", minimum=1, stages=_DIFFUSION, pending="a choice of threads"
    )
    enable_broadcast_weight_load: bool = setting(
        False, "read weights once and send them to every rank", stages=_DIFFUSION, pending="parallel ranks"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpec:
    """Key and value caches of language models, and their share of a device."""

    kv_cache_memory_bytes: int | None = setting(None, "size of the cache", unit="B", minimum=0, pending=_ENGINE)
    gpu_memory_utilization: float | None = setting(
        None, "share of a device's memory that may be used", above=0, maximum=1, pending=_ENGINE
    )
    enable_prefix_caching: bool | None = setting(None, "keep caches of equal beginnings", pending=_ENGINE)
    disable_hybrid_kv_cache_manager: bool | None = setting(None, "one cache manager for all layers", pending=_ENGINE)
    mm_processor_cache_gb: float | None = setting(
        None, "cache of prepared media", unit="GiB", minimum=0, pending=_ENGINE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpec:
    """What of language models runs together, and what is sent early."""

    max_num_batched_tokens: int | None = setting(
        None, "tokens of one forward pass", minimum=1, stages=_LM, pending=_ENGINE
    )
    max_model_len: int | None = setting(
        None, "longest text with its answer (-1: what fits)", minimum=-1, stages=_LM, pending=_ENGINE
    )
    enable_chunked_prefill: bool | None = setting(None, "read long texts in pieces", stages=_LM, pending=_ENGINE)
    async_scheduling: bool | None = setting(None, "plan a step while another runs", stages=_LM, pending=_ENGINE)
    streaming_output: bool = setting(False, "send parts of a clip early", stages=_DIFFUSION, pending="streamed clips")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverSpec:
    """How stages hand their outputs on."""

    omni_kv_config: Mapping[str, Any] | None = setting(
        None, "hand-over of key and value caches to another stage", pending=_KV, idle=({},)
    )
    kv_transfer_config: Mapping[str, Any] | None = setting(
        None, "hand-over of key and value caches to another engine", stages=_LM, pending=_KV, idle=({},)
    )
    input_connectors: Mapping[str, Any] | None = setting(
        None, "connectors by input", pending="several connectors of a stage", idle=({},)
    )
    output_connectors: Mapping[str, Any] | None = setting(
        None, "connectors by output", pending="several connectors of a stage", idle=({},)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSpec:
    """Which classes and variables the processes of a stage have."""

    worker_extension_cls: str | None = setting(
        None, "class that workers also are", stages=_DIFFUSION, pending="calls of workers' methods from outside"
    )
    enable_sleep_mode: bool = setting(False, "let an idle model give its memory back", pending="sleeping models")
    disable_log_stats: bool | None = setting(None, "log no figures of a stage", pending="logged figures", idle=(True,))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSpec:
    """Weights in fewer bits."""

    quantization: str | None = setting(None, "method for the weights", metavar="NAME", pending="quantisation")
    quantization_config: Mapping[str, Any] | None = setting(
        None, "methods by component", metavar="JSON", aliases=("diffusion_quantization_config",), pending="quantisation"
    )
    force_cutlass_fp8: bool = setting(False, "CUTLASS for FP8", stages=_DIFFUSION, pending="quantisation")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSpec:
    """Where weights wait while they are not needed."""

    enable_cpu_offload: bool = setting(False, "keep idle components in host memory", pending="offloading")
    enable_layerwise_offload: bool = setting(False, "stream blocks from host memory", pending="offloading")
    enable_distributed_layerwise_offload: bool = setting(
        False, "stream blocks of which each rank keeps a shard", pending="offloading"
    )
    dlo_use_allgather: bool = setting(
        True, "gather shards from ranks", aliases=("!dlo_no_use_allgather",), pending="offloading"
    )
    dlo_resident_layers: int = setting(0, "first blocks that stay on the device", minimum=0, pending="offloading")
    pin_cpu_memory: bool = setting(True, "pin host memory of weights", pending="offloading")
    memory_budget: str | None = setting(
        None, "device memory to plan for, auto or a size", metavar="auto|24GiB", pending="memory plans"
    )
    vae_use_tiling: bool | None = setting(
        None, "decode in tiles; MiniMax-H3 always does", pending="a choice of tiling", idle=(True,)
    )
    vae_use_slicing: bool | None = setting(
        None, "decode one clip of a batch after another", pending="a choice of slicing"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionSpec:
    """What only diffusion stages have: caches of steps, compilation, adapters, the runner."""

    cache_backend: str = setting(
        "none", "what is reused between steps", choices=("none", "cache_dit", "tea_cache"), pending="step caches"
    )
    cache_config: Mapping[str, Any] | None = setting(
        None, "options of the cache", metavar="JSON", pending="step caches"
    )
    enable_cache_dit_summary: bool = setting(False, "log what the cache reused", pending="step caches")
    lora_path: str | None = setting(None, "adapter that is always on", metavar="DIR|REPO", pending="adapters")
    lora_scale: float = setting(1.0, "strength of the adapter", aliases=("static_lora_scale",), pending="adapters")
    max_cpu_loras: int = setting(1, "adapters kept in host memory", minimum=1, pending="adapters")
    diffusion_compile_granularity: str | None = setting(
        None, "what is compiled as one graph", metavar="NAME", pending="compilation"
    )
    boundary_ratio: float | None = setting(
        None, "where the second expert takes over", minimum=0, maximum=1, pending="models of two experts"
    )
    max_generated_image_size: int | None = setting(
        None, "most pixels of a picture", unit="px", minimum=1, pending="a limit of pixels"
    )
    engine_backend: str = setting("default", "engine of the stage", pending="another engine")
    diffusion_model_runner_cls: str | None = setting(None, "class of the runner", pending="another runner")
    scheduler_port: int | None = setting(
        None, "port of the scheduler", minimum=0, maximum=65535, pending="a scheduler of its own"
    )
    enable_session_state_manager: bool = setting(False, "keep tensors of sessions", pending="sessions")
    supports_mixed_reference_inputs: bool = setting(
        False, "take references of several kinds in one request", pending="a switch for references"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSpec:
    """Options of a compiler, and what requests start from."""

    compilation_config: Mapping[str, Any] | None = setting(None, "options of the compiler", pending="compilation")
    seed: int | None = setting(None, "seed of requests that bring none", pending="a seed of the service")
    default_sampling_params: Mapping[str, Any] | None = setting(
        None, "sampling of requests that do not say it", metavar="JSON", pending="sampling defaults"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """What holds for a pipeline as a whole."""

    output_modalities: tuple[str, ...] | None = setting(
        None, "kinds of output that are made", pending="a choice of outputs"
    )
    stage_id: int | None = setting(None, "the one stage to run here", minimum=0, pending=_ALONE)
    headless: bool = setting(False, "run a stage without a server", pending=_ALONE)
    log_stats: bool = setting(False, "log figures now and then", pending="logged figures")
