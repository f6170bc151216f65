"""Every pair of the table is refused, and neither half of it alone."""

from typing import Any

import pytest

from omnireel.config import all_settings, compat
from omnireel.config.sources import DEFAULT, Source

ON: dict[str, dict[str, Any]] = {
    "data parallelism": {"data_parallel_size": 2},
    "tensor parallelism": {"tensor_parallel_size": 2},
    "pipeline parallelism": {"pipeline_parallel_size": 2},
    "expert parallelism": {"enable_expert_parallel": True},
    "Ulysses": {"ulysses_degree": 2},
    "ring attention": {"ring_degree": 2},
    "gathered keys and values": {"allgather_degree": 2},
    "sharded weights (HSDP)": {"use_hsdp": True},
    "quantised keys and values": {"diffusion_kv_cache_dtype": "fp8"},
    "distributed offload with all-gather": {"enable_distributed_layerwise_offload": True},
    "resident layers": {"dlo_resident_layers": 1},
    "quantisation while loading": {"quantization": "fp8"},
    "a step cache with data parallelism": {"cache_backend": "tea_cache", "data_parallel_size": 2},
    "--diffusion-attention-backend": {"diffusion_attention_backend": "A"},
    "--diffusion-attention-config.default": {"diffusion_attention_config": {"default": "A"}},
    "TRTLLM_ATTN": {"diffusion_attention_config": {"per_role": {"cross": {"backend": "trtllm_attn"}}}},
    "compiled blocks": {"compile_blocks": "on"},
    "recorded steps": {"cuda_graphs": "on"},
    "offloaded weights": {"enable_layerwise_offload": True},
    "fused kernels": {"fused_kernels": "on"},
    "requests stepped as one batch": {"max_num_seqs": 2},
    "stages that hand over parts": {"async_chunk": True},
    "one process a model, or Ray": {"distributed_executor_backend": "ray"},
    "RAINFUSION_ATTN": {"diffusion_attention_backend": "RainFusion_Attn"},
}
DEFAULTS = {name: item.default for name, item in all_settings().items()}


def found(said):
    sources = {name: Source(kind="flag", name=name) if name in said else DEFAULT for name in DEFAULTS}
    return list(compat.problems({**DEFAULTS, **said}, sources))


@pytest.mark.parametrize("pair", compat.TABLE, ids=lambda pair: f"{pair.first.name} with {pair.second.name}")
def test_a_pair_is_refused_with_its_reason_and_each_half_is_not(pair):
    first, second = ON[pair.first.name], ON[pair.second.name]
    both = [problem for problem in found({**first, **second}) if problem.details["why"] == pair.why]
    assert both
    assert all(name in both[0].message for name in (*first, *second))
    assert not found(first)
    assert not found(second)


def test_offload_without_all_gather_goes_with_what_all_gather_does_not():
    local = {"enable_distributed_layerwise_offload": True, "dlo_use_allgather": False}
    assert not found({**local, "tensor_parallel_size": 2, "dlo_resident_layers": 3, "quantization": "fp8"})


def test_blocks_that_are_never_compiled_go_with_fused_kernels():
    assert not found({"compile_blocks": "on", "fused_kernels": "on", "enforce_eager": True})


def test_every_feature_is_made_of_settings():
    features = {feature for pair in compat.TABLE for feature in (pair.first, pair.second)}
    assert {name for feature in features for name in feature.settings} <= set(all_settings())
    assert {feature.name for feature in features} == set(ON)


def test_no_pair_stands_twice():
    pairs = [frozenset((pair.first.name, pair.second.name)) for pair in compat.TABLE]
    assert len(set(pairs)) == len(pairs)
