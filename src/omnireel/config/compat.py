"""The one table of features that cannot go together, each pair with its reason; looked at before any weight is loaded.

A feature is a name for people and a look at the settled values. What needs a device or a checkpoint is checked where that
is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnireel.config.groups import all_settings
from omnireel.errors import Incompatible

if TYPE_CHECKING:
    from omnireel.config.sources import Source

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """`settings` are those that turn it on, the telling one first; `is_on` is asked with a value for each setting."""

    name: str
    settings: tuple[str, ...]
    is_on: Callable[[Values], bool]

    @property
    def is_pending(self) -> bool:
        """Whether this version does not have it."""
        return bool(all_settings()[self.settings[0]].pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two features that cannot go together, and why."""

    first: Feature
    second: Feature
    why: str


def problems(values: Values, sources: Mapping[str, Source]) -> Iterator[Incompatible]:
    """Every pair of the table that is on at once, saying what was set and where."""
    for pair in TABLE:
        if pair.first.is_on(values) and pair.second.is_on(values):
            first, second = (_shown(item, values, sources) for item in (pair.first, pair.second))
            yield Incompatible(first, second, pair.why)


def _shown(feature: Feature, values: Values, sources: Mapping[str, Source]) -> str:
    said = [name for name in feature.settings if name in sources and sources[name].kind != "default"]
    told = [
        f"{name} = {values[name]} (from {sources[name]})" for name in said or feature.settings[:1] if name in sources
    ]
    return ", ".join(told) or feature.name


def _degree(name: str, setting: str) -> Feature:
    return Feature(name=name, settings=(setting,), is_on=lambda values: (values[setting] or 1) > 1)


def _switch(name: str, setting: str) -> Feature:
    return Feature(name=name, settings=(setting,), is_on=lambda values: bool(values[setting]))


def _backend(name: str) -> Feature:
    def is_on(values: Values) -> bool:
        config = values["diffusion_attention_config"] or {}
        return name in _backends(values["diffusion_attention_backend"], config.get("default"), config.get("per_role"))

    return Feature(name=name, settings=("diffusion_attention_backend", "diffusion_attention_config"), is_on=is_on)


def _backends(*written: Any) -> Iterator[str]:
    for item in written:
        if isinstance(item, str):
            yield item.upper()
        elif isinstance(item, Mapping):
            yield from _backends(*item.values())


def _has_default(values: Values) -> bool:
    return (values["diffusion_attention_config"] or {}).get("default") is not None


def _is_gathering(values: Values) -> bool:
    return bool(values["enable_distributed_layerwise_offload"] and values["dlo_use_allgather"])


_DP = _degree("data parallelism", "data_parallel_size")
_TP = _degree("tensor parallelism", "tensor_parallel_size")
_PP = _degree("pipeline parallelism", "pipeline_parallel_size")
_EXPERTS = _switch("expert parallelism", "enable_expert_parallel")
_ULYSSES = _degree("Ulysses", "ulysses_degree")
_RING = _degree("ring attention", "ring_degree")
_GATHER_KV = _degree("gathered keys and values", "allgather_degree")
_HSDP = _switch("sharded weights (HSDP)", "use_hsdp")
_KV_QUANT = Feature(
    name="quantised keys and values",
    settings=("diffusion_kv_cache_dtype",),
    is_on=lambda values: values["diffusion_kv_cache_dtype"] not in (None, "auto", "float"),
)
_GATHERED = Feature(
    name="distributed offload with all-gather",
    settings=("enable_distributed_layerwise_offload", "dlo_use_allgather"),
    is_on=_is_gathering,
)
_RESIDENT = Feature(
    name="resident layers", settings=("dlo_resident_layers",), is_on=lambda values: values["dlo_resident_layers"] > 0
)
_QUANTIZED = Feature(
    name="quantisation while loading",
    settings=("quantization", "quantization_config"),
    is_on=lambda values: values["quantization"] is not None or values["quantization_config"] is not None,
)
_CACHE_AND_DP = Feature(
    name="a step cache with data parallelism",
    settings=("cache_backend", "data_parallel_size"),
    is_on=lambda values: values["cache_backend"] != "none" and (values["data_parallel_size"] or 1) > 1,
)
_ATTENTION_BACKEND = Feature(
    name="--diffusion-attention-backend",
    settings=("diffusion_attention_backend",),
    is_on=lambda values: values["diffusion_attention_backend"] is not None,
)
_ATTENTION_DEFAULT = Feature(
    name="--diffusion-attention-config.default", settings=("diffusion_attention_config",), is_on=_has_default
)
_COMPILED = Feature(
    name="compiled blocks",
    settings=("compile_blocks",),
    is_on=lambda values: values["compile_blocks"] == "on" and not values["enforce_eager"],
)
_FUSED = Feature(
    name="fused kernels", settings=("fused_kernels",), is_on=lambda values: values["fused_kernels"] == "on"
)
_OFFLOADS = ("enable_cpu_offload", "enable_layerwise_offload", "enable_distributed_layerwise_offload")
_OFFLOADED = Feature(
    name="offloaded weights", settings=_OFFLOADS, is_on=lambda values: any(values[name] for name in _OFFLOADS)
)
_GRAPHS = Feature(
    name="recorded steps",
    settings=("cuda_graphs",),
    is_on=lambda values: values["cuda_graphs"] == "on" and not values["enforce_eager"],
)

_BATCHED = Feature(
    name="requests stepped as one batch",
    settings=("max_num_seqs", "step_execution"),
    is_on=lambda values: (values["max_num_seqs"] or 1) > 1 or values["step_execution"],
)
_CHUNKED = _switch("stages that hand over parts", "async_chunk")
_ELSEWHERE = Feature(
    name="one process a model, or Ray",
    settings=("distributed_executor_backend",),
    is_on=lambda values: values["distributed_executor_backend"] in ("uni", "ray"),
)

_SHARDS = "sharding spreads one copy of the weights over the ranks of a request; these ranks hold other weights"
TABLE: tuple[Pair, ...] = (
    Pair(first=_ATTENTION_BACKEND, second=_ATTENTION_DEFAULT, why="both name the default backend"),
    Pair(first=_COMPILED, second=_FUSED, why="a compiler fuses the operations that the kernels would replace"),
    Pair(
        first=_GRAPHS, second=_OFFLOADED, why="a recorded step reads weights where they lay, and offloading moves them"
    ),
    Pair(
        first=_GATHER_KV,
        second=_ULYSSES,
        why="gathered keys and values are a whole sequence-parallel mode of their own",
    ),
    Pair(
        first=_GATHER_KV, second=_RING, why="gathered keys and values are a whole sequence-parallel mode of their own"
    ),
    Pair(first=_ULYSSES, second=_ELSEWHERE, why="its ranks are worker processes of this machine"),
    Pair(first=_ULYSSES, second=_BATCHED, why="ranks run one request at a time"),
    Pair(first=_ULYSSES, second=_CHUNKED, why="ranks would take different parts at the same time"),
    Pair(first=_ULYSSES, second=_COMPILED, why="compiled blocks were not run with an exchange of rows inside of them"),
    Pair(first=_ULYSSES, second=_GRAPHS, why="a recorded step cannot wait for other ranks, nor be left when one fails"),
    Pair(first=_HSDP, second=_TP, why=_SHARDS),
    Pair(first=_HSDP, second=_DP, why=_SHARDS),
    Pair(first=_HSDP, second=_PP, why=_SHARDS),
    Pair(first=_HSDP, second=_EXPERTS, why=_SHARDS),
    Pair(first=_KV_QUANT, second=_RING, why="partial results of ring attention cannot be merged from quantised blocks"),
    Pair(first=_backend("TRTLLM_ATTN"), second=_GATHER_KV, why="its packed lengths are those of one rank's rows"),
    Pair(first=_backend("TRTLLM_ATTN"), second=_RING, why="its kernels do not give what partial results are merged by"),
    Pair(first=_backend("RAINFUSION_ATTN"), second=_RING, why="its block plan needs all keys on one rank"),
    Pair(first=_GATHERED, second=_TP, why="shards are gathered from whole weights, and these are split already"),
    Pair(first=_GATHERED, second=_HSDP, why="the weights would be sharded twice"),
    Pair(first=_GATHERED, second=_QUANTIZED, why="shards are cut from the stored weights, before they are quantised"),
    Pair(first=_GATHERED, second=_RESIDENT, why="layers stay resident only where each rank streams its own weights"),
    Pair(first=_GATHERED, second=_CACHE_AND_DP, why="ranks that skip a step would leave the others waiting"),
)
