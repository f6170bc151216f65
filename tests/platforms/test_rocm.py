"""AMD cards, on a stand-in for torch's ROCm build: nothing here was run on such hardware."""

from __future__ import annotations

import pytest
import torch
from tests.support.devices import Runtime

from omnireel.platforms import rocm


@pytest.fixture
def cards(monkeypatch):
    """Makes torch a ROCm build that sees two cards of a generation."""

    def make(generation: str, *, has_aiter: bool) -> None:
        monkeypatch.setattr(torch.version, "hip", "7.0")
        monkeypatch.setattr(torch, "cuda", Runtime(gcnArchName=f"{generation}:sramecc+:xnack-"))
        monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if has_aiter else None)

    return make


def test_a_build_for_something_else_says_so():
    assert rocm.PLATFORM.why_not() == "this build of torch has no ROCm"


def test_it_is_told_apart_from_cuda(cards):
    from omnireel.platforms import cuda

    cards("gfx942", has_aiter=False)
    assert rocm.PLATFORM.available()
    assert not cuda.PLATFORM.available()
    assert rocm.PLATFORM.device(1) == torch.device("cuda", 1)
    assert [item.capability for item in rocm.PLATFORM.devices()] == ["gfx942", "gfx942"]


@pytest.mark.parametrize(
    ("generation", "has_aiter", "first"),
    [
        ("gfx942", True, "FLASH_ATTN"),
        ("gfx950", True, "FLASH_ATTN"),
        ("gfx1100", True, "TORCH_SDPA"),
        ("gfx942", False, "TORCH_SDPA"),
    ],
)
def test_flash_attention_is_the_default_where_aiter_has_it(cards, generation, has_aiter, first):
    cards(generation, has_aiter=has_aiter)
    assert rocm.PLATFORM.attention_preference[0] == first
    assert rocm.PLATFORM.attention_preference[-1] == "TORCH_SDPA"
