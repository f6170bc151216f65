"""Stand-ins for kernels that this machine has not: they record how they were called and compute with torch."""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from omnireel.attention.backends.torch_sdpa import attend
from omnireel.attention.flash import load_kernel


class Recorder:
    """A kernel's function. `calls` has the keywords of each call, positional arguments under their place."""

    def __init__(self, compute: Any, takes: Any = None) -> None:
        self.calls: list[dict[Any, Any]] = []
        self._compute, self._takes = compute, takes

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self._takes is not None:
            self._takes(*args, **options)
        self.calls.append({**dict(enumerate(args)), **options})
        return self._compute(*args, **options)


def dense(q: Any, k: Any, v: Any, softmax_scale: float, causal: bool) -> Any:
    return attend(q, k, v, scale=softmax_scale, causal=causal)


def varlen(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    softmax_scale: float, causal: bool,
) -> Any:  # fmt: skip
    assert cu_seqlens_q.dtype is cu_seqlens_k.dtype is torch.int32
    out = torch.zeros_like(q)
    for a, b, c, d in zip(cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False):
        assert b - a <= max_seqlen_q
        assert d - c <= max_seqlen_k
        if b > a and d > c:
            out[a:b] = attend(q[None, a:b], k[None, c:d], v[None, c:d], scale=softmax_scale, causal=causal)[0]
    return out


@pytest.fixture
def stand_in(monkeypatch):
    """Puts a module of that name where imports find it, with the functions that are given."""

    def put(name: str, **functions: Any) -> ModuleType:
        parent = ""
        for part in name.split("."):
            path = f"{parent}.{part}" if parent else part
            module = ModuleType(path)
            module.__spec__ = importlib.machinery.ModuleSpec(path, None)
            module.__path__ = []
            monkeypatch.setitem(sys.modules, path, module)
            if parent:
                monkeypatch.setattr(sys.modules[parent], part, module, raising=False)
            parent = path
        for function, value in functions.items():
            setattr(module, function, value)
        return module

    load_kernel.cache_clear()
    yield put
    load_kernel.cache_clear()


@pytest.fixture
def flash_module(stand_in):
    """A module as FlashAttention's are; gives the records of its two functions."""

    def put(name: str, *, has_dense: bool = True, as_tuple: bool = False) -> tuple[Recorder, Recorder]:
        wrap = (lambda compute: lambda *a, **o: (compute(*a, **o), None)) if as_tuple else (lambda compute: compute)
        one, many = Recorder(wrap(dense)), Recorder(wrap(varlen))
        functions = {"flash_attn_varlen_func": many} | ({"flash_attn_func": one} if has_dense else {})
        stand_in(name, **functions)
        return one, many

    return put


@pytest.fixture
def qkv():
    """q, k and v [B,S,H,D] in bfloat16, or another type."""

    def draw(rows: int = 12, *, batch: int = 1, heads: int = 2, key_heads: int | None = None, dim: int = 64,
             keys: int | None = None, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:  # fmt: skip
        torch.manual_seed(0)
        keys = rows if keys is None else keys
        shapes = (rows, heads), (keys, key_heads or heads), (keys, key_heads or heads)
        return [torch.randn(batch, count, number, dim).to(dtype) for count, number in shapes]

    return draw
