"""The settings of an engine. One field is one flag, one environment variable, one row of `config show` and of the docs.

What a single clip looks like is not here: that is `request.DiffusionSamplingParams`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnireel.acceleration.spec import ENCODE_PRECISIONS, SWITCH
from omnireel.request import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Which model runs, and where."""

    model: str = setting(
        "mini-h3",
        "a built-in model, the directory of a checkpoint, or a repository of a hub (owner/name)",
        metavar="NAME|DIR|REPO",
    )
    task_type: str = setting(
        "auto",
        "what the service is started for; MiniMax-H3 knows auto, combined, t2va, fl2va and ref2va",
        metavar="TASK",
    )
    model_subdir: str | None = setting(None, "folder below the model's directory that is taken instead of it")
    revision: str | None = setting(None, "branch, tag or commit of a hub's repository; its newest when absent")
    use_modelscope: bool = setting(False, "download from ModelScope instead of Hugging Face")
    native_qkv_layout: str = setting(
        "interleaved",
        "order of fused tensors in a native checkpoint: interleaved as published, stacked as some third parties store them",
        choices=("interleaved", "stacked"),
        stages=("diffusion",),
    )
    device: str = setting("auto", "where the model runs", metavar="auto|cpu|cuda[:N]")
    dtype: str = setting(
        "auto",
        "number type of the weights (auto: what the device computes well; checkpoint: as stored)",
        choices=("auto", "checkpoint", "float32", "bfloat16"),
    )
    trust_remote_code: bool = setting(
        False, "accepted for scripts of other servers; no code of a checkpoint is ever run"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFlags:
    """How attention is computed."""

    diffusion_attention_backend: str | None = setting(
        None, "attention backend of the denoiser; the device's own preference when absent", metavar="NAME"
    )
    diffusion_attention_config: Mapping[str, Any] | None = setting(
        None,
        "attention backends by role, as default and per_role; --diffusion-attention-config.default.backend NAME sets one",
        metavar="JSON",
    )
    diffusion_kv_cache_dtype: str | None = setting(
        None,
        "number type of keys and values in the denoiser's attention",
        aliases=("kv_cache_dtype",),
        pending="quantised keys and values",
        idle=("auto",),
    )
    diffusion_kv_cache_skip_steps: str | None = setting(
        None, "steps that keep full keys and values", metavar="SELECTOR", pending="quantised keys and values"
    )
    diffusion_kv_cache_skip_layers: str | None = setting(
        None, "layers that keep full keys and values", metavar="SELECTOR", pending="quantised keys and values"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerationSpec:
    """What makes a model faster without changing what it computes."""

    enforce_eager: bool = setting(False, "run blocks as they are written, never compiled")
    compile_blocks: str = setting("auto", "compile the repeated blocks of the denoiser", choices=SWITCH)
    compile_vae: str = setting("auto", "compile the repeated blocks of the video decoder", choices=SWITCH)
    fused_kernels: str = setting(
        "auto", "Triton kernels between the matrix products of the denoiser and the video VAE", choices=SWITCH
    )
    modulation_tables: str = setting(
        "auto",
        "compute the modulation of all steps before the first, and keep its weights in host memory",
        choices=SWITCH,
    )
    overlap_frames: str = setting("auto", "move decoded frames to the host while the next are decoded", choices=SWITCH)
    cuda_graphs: str = setting("auto", "replay the steps of small clips as one recorded graph", choices=SWITCH)
    vae_encode_precision: str = setting(
        "float32", "number type of the video encoder's convolutions", choices=ENCODE_PRECISIONS
    )
    warm_up: bool = setting(False, "run what is compiled once before the first request")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """How requests are run."""

    max_queue: int = setting(16, "requests that may wait; one more is refused", minimum=1, stages=())
    timeout_seconds: float | None = setting(
        None, "time that a request may take, waiting included", unit="s", minimum=0.001, stages=()
    )
    enable_prompt_embed_cache: bool = setting(
        False, "keep what the text encoder made of the last prompts", stages=("diffusion",)
    )
    prompt_embed_cache_size: int = setting(32, "prompts whose encoding is kept", minimum=1, stages=("diffusion",))
    validate_finite_tensors: bool = setting(
        False,
        "look for NaN and infinity after each step, and fail the request naming the tensor (waits for the device)",
        stages=("diffusion",),
    )
    num_threads: int | None = setting(
        None, "CPU threads of the model; the machine's cores when absent", minimum=1, maximum=4096
    )
    enable_diffusion_pipeline_profiler: bool = setting(
        False,
        "measure seconds and peak memory of each part of a request, told with its result (waits for the device)",
        stages=("diffusion",),
    )
    torch_profiler_dir: Path | None = setting(
        None, "folder for traces of torch's profiler; no profile can be started when absent", metavar="DIR", stages=()
    )
    torch_profiler_max_seconds: float = setting(
        60.0, "time after which a trace ends by itself", unit="s", minimum=0.1, maximum=3600, stages=()
    )
    log_level: str = setting(
        "warning", "how much is logged to stderr", choices=("debug", "info", "warning", "error"), stages=()
    )
    log_format: str = setting("text", "how log lines are written", choices=("text", "json"), stages=())
    deploy_config: Path | None = setting(None, "YAML file with settings and stages", metavar="FILE", stages=())
    stage_overrides: Mapping[str, Any] | None = setting(
        None,
        'settings of stages by number, {"0": {"dtype": "float32"}}; --stage-N-NAME VALUE sets one',
        metavar="JSON",
        stages=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """Which requests run together."""

    max_num_seqs: int | None = setting(
        None,
        "requests of one batch key that are stepped as one batch; a diffusion model's own default is 1",
        minimum=1,
        maximum=1024,
        aliases=("max_batch_size",),
    )
    step_execution: bool = setting(
        False, "let requests join and leave a batch between two steps", stages=("diffusion",)
    )
    request_batch_max_wait_ms: float = setting(
        0.0, "longest wait for a batch to fill up (0: none)", unit="ms", minimum=0, stages=("diffusion",)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """Where copies of the model run, how long they are waited for, and what becomes of one that dies."""

    distributed_executor_backend: str | None = setting(
        None,
        "where the model runs: uni in this process, mp in worker processes, ray in actors of a Ray cluster; when absent uni, and mp for a server or several replicas",
        choices=("uni", "mp", "ray"),
        aliases=("worker_backend",),
    )
    ray_address: str | None = setting(
        None,
        "Ray cluster, HOST:PORT or local for one of this machine alone; when absent the one that this machine is a node of",
        stages=(),
    )
    ray_resources: Mapping[str, float] | None = setting(
        None,
        'what a worker takes of a Ray node, such as {"GPU": 1, "CPU": 8}; one device when absent',
        metavar="JSON",
    )
    num_replicas: int = setting(1, "copies of the model, each on a device of its own", minimum=1, maximum=64)
    devices: str | None = setting(None, "indices of the replicas' devices, such as 0,2", metavar="N,N")
    stage_init_timeout: float | None = setting(
        None, "time that a worker may take to load its model", unit="s", above=0, stages=()
    )
    init_timeout: float | None = setting(
        None, "time that all workers together may take to load", unit="s", above=0, stages=()
    )
    batch_timeout: float | None = setting(
        None, "time that a batch may take in a worker, which is killed then", unit="s", above=0, stages=()
    )
    step_timeout_seconds: float | None = setting(
        None, "time that one step or stage may take in a worker, which is killed then", unit="s", above=0, stages=()
    )
    worker_timeout_seconds: float = setting(
        30.0, "time without a sign of life after which a worker is killed", unit="s", minimum=0.1, stages=()
    )
    max_worker_deaths: int = setting(
        5, "deaths of a worker in a row after which it is not started again", minimum=1, maximum=1000, stages=()
    )
    env: Mapping[str, Any] | None = setting(
        None, "variables of worker processes, beside those that they inherit", metavar="JSON", is_secret=True
    )
    worker_cls: str | None = setting(
        None,
        "class of worker processes, a subclass of omnireel.engine.worker.Worker in an installed package",
        metavar="package.module.Class",
    )
    rerun_interrupted: bool = setting(
        False, "run a request once more whose worker died, rather than fail it", stages=()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """How the server listens, what it keeps and whom it lets in."""

    host: str = setting("127.0.0.1", "address that the server listens at")
    port: int = setting(8000, "port that the server listens at (0: any free one)", minimum=0, maximum=65535)
    root_path: str = setting("", "path under which a proxy shows the server", metavar="PATH")
    served_model_name: tuple[str, ...] | None = setting(
        None, "names that requests may give the model; answers use the first", metavar="A,B"
    )
    api_key: tuple[str, ...] | None = setting(
        None,
        "keys that requests need; rather use a file or the variable, as others see a command line",
        metavar="A,B",
        is_secret=True,
    )
    api_key_file: Path | None = setting(
        None, "file with one key a line, as it is or as sha256:HEX of it", metavar="FILE"
    )
    cors_origins: tuple[str, ...] | None = setting(None, "web pages that may call the server (*: any)", metavar="A,B")
    storage_path: Path | None = setting(
        None, "folder of jobs and their files; ~/.local/share/omnireel when absent", metavar="DIR"
    )
    file_ttl: float | None = setting(
        None, "time that finished files are kept; for ever when absent", unit="s", minimum=0.001
    )
    interrupted_jobs: str = setting(
        "rerun",
        "what becomes of jobs that ran when the server or its worker died (rerun: once more)",
        choices=("rerun", "fail"),
    )
    max_jobs: int = setting(1000, "jobs that may wait; one more is refused with 429", minimum=1)
    max_jobs_per_key: int | None = setting(None, "jobs of one key that may wait or run", minimum=1)
    max_upload_mib: int = setting(512, "largest body of a request", unit="MiB", minimum=1)
    exit_on_engine_failure: bool = setting(
        True, "end with an error when every replica was given up; else the server stays up to hand out what is finished"
    )
    video_sync_timeout: float = setting(3600.0, "longest wait of a synchronous request", unit="s", minimum=0.001)
    abort_timeout: float = setting(
        30.0, "time that running jobs get to finish when the server stops", unit="s", minimum=0
    )
    media_timeout: float = setting(60.0, "time that fetching or checking one file may take", unit="s", minimum=0.1)
    allow_private_media: bool = setting(False, "also fetch media from private and loopback addresses")
    allowed_local_media_path: Path | None = setting(
        None, "folder below which file:// names media; none may when absent", metavar="DIR"
    )
    preview_every: int = setting(5, "make a preview after every this many steps (0: none)", unit="steps", minimum=0)
