"""The degrees of parallelism, as settings; no torch here. Those marked `pending` have their names and owners, and nothing behind them yet."""

from __future__ import annotations

from dataclasses import dataclass

from omnireel.request import setting

_DIFFUSION = ("diffusion",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """Degrees of parallelism. World size = PP x TP x SP x CFG x DP."""

    data_parallel_size: int | None = setting(
        None, "copies that take different requests; each has num_replicas of them", minimum=1, maximum=64
    )
    tensor_parallel_size: int = setting(
        1, "ranks that share each linear layer", minimum=1, pending="tensor parallelism"
    )
    pipeline_parallel_size: int = setting(1, "ranks that share the layers", minimum=1, pending="pipeline parallelism")
    enable_expert_parallel: bool = setting(False, "spread experts over ranks", pending="expert parallelism")
    ulysses_degree: int = setting(
        1,
        "ranks that share the rows of a request, and in attention its heads; each is a process with a device of its own",
        minimum=1,
        maximum=64,
        aliases=("usp",),
        stages=_DIFFUSION,
    )
    ulysses_mode: str = setting(
        "strict",
        "heads that ulysses_degree does not divide: strict refuses them, advanced_uaa gives some ranks one more",
        choices=("strict", "advanced_uaa"),
        stages=_DIFFUSION,
    )
    ring_degree: int = setting(
        1,
        "ranks that pass keys and values around",
        minimum=1,
        aliases=("ring",),
        stages=_DIFFUSION,
        pending="ring attention",
    )
    allgather_degree: int = setting(
        1, "ranks that gather all keys and values", minimum=1, stages=_DIFFUSION, pending="gathered keys and values"
    )
    sequence_parallel_size: int | None = setting(
        None, "product of the three degrees, as a check", minimum=1, stages=_DIFFUSION
    )
    mask_sp_padding: bool = setting(
        False, "hide rows that only fill up; none are made here", stages=_DIFFUSION, pending="rows that fill up"
    )
    cfg_parallel_size: int = setting(
        1, "ranks that share the branches of guidance", minimum=1, stages=_DIFFUSION, pending="guidance parallelism"
    )
    use_hsdp: bool = setting(False, "shard weights over ranks", stages=_DIFFUSION, pending="sharded weights")
    hsdp_shard_size: int = setting(
        -1,
        "ranks that share one copy of the weights (-1: all)",
        minimum=-1,
        stages=_DIFFUSION,
        pending="sharded weights",
    )
    hsdp_replicate_size: int = setting(
        1, "copies of sharded weights", minimum=1, stages=_DIFFUSION, pending="sharded weights"
    )
    text_encoder_tp_size: int = setting(
        1, "ranks that share the text encoder", minimum=1, stages=_DIFFUSION, pending="tensor parallelism"
    )
    vae_patch_parallel_size: int = setting(
        1,
        "ranks that share the tiles of a clip when it is decoded: 1, or all that share the request",
        minimum=1,
        maximum=64,
        stages=_DIFFUSION,
    )
    vae_parallel_mode: str = setting(
        "tile",
        "how a clip is split over ranks",
        choices=("tile", "spatial_shard_height", "spatial_shard_width"),
        stages=_DIFFUSION,
        pending="strips of a clip",
    )

    @property
    def num_ranks(self) -> int:
        """Processes that compute one request together."""
        return self.ulysses_degree * self.ring_degree * self.allgather_degree
