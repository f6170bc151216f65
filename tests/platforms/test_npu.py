"""Ascend devices, on a stand-in for torch_npu: nothing here was run on such hardware."""

from __future__ import annotations

import pytest
import torch
from tests.support.devices import Runtime

from omnireel.platforms import npu


def install(monkeypatch: pytest.MonkeyPatch, *packages: str, count: int = 2) -> None:
    """Makes some packages findable, and what torch_npu puts into torch."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name in packages else None)
    monkeypatch.setattr(torch, "npu", Runtime(count), raising=False)


def test_without_the_package_it_says_so():
    assert npu.PLATFORM.why_not() == "the package torch_npu is not installed"


def test_the_package_without_a_device_is_not_enough(monkeypatch):
    install(monkeypatch, "torch_npu", count=0)
    assert npu.PLATFORM.why_not() == "torch sees no Ascend device"


@pytest.mark.parametrize(
    ("packages", "preference"),
    [(("torch_npu",), ("TORCH_SDPA",)), (("torch_npu", "mindiesd"), ("FLASH_ATTN", "TORCH_SDPA"))],
)
def test_flash_attention_is_the_default_where_mindiesd_is_there(monkeypatch, packages, preference):
    install(monkeypatch, *packages)
    assert npu.PLATFORM.available()
    assert npu.PLATFORM.attention_preference == preference


def test_its_own_words_for_no_memory_are_recognised(monkeypatch):
    install(monkeypatch, "torch_npu")
    found = npu.PLATFORM.out_of_memory(RuntimeError("NPU out of memory. Tried to allocate 3.00 MiB"), "step")
    assert found is not None
    assert found.details["asked_bytes"] == 3 * 2**20


def test_the_compiler_is_not_promised():
    assert not npu.PLATFORM.traits.has_inductor
