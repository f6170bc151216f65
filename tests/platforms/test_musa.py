"""Moore Threads cards, on a stand-in for torch_musa: nothing here was run on such hardware."""

from __future__ import annotations

import pytest
import torch
from tests.support.devices import Runtime

from omnireel.platforms import musa


def install(monkeypatch: pytest.MonkeyPatch, *packages: str, capability: tuple[int, int] = (3, 1)) -> None:
    """Makes some packages findable, and what torch_musa puts into torch."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name in packages else None)
    monkeypatch.setattr(torch, "musa", Runtime(capability=capability), raising=False)


def test_without_the_package_it_says_so():
    assert musa.PLATFORM.why_not() == "the package torch_musa is not installed"


@pytest.mark.parametrize(
    ("packages", "capability", "first"),
    [
        (("torch_musa", "mate"), (3, 1), "FLASH_ATTN"),
        (("torch_musa", "mate"), (2, 2), "TORCH_SDPA"),
        (("torch_musa",), (3, 1), "TORCH_SDPA"),
    ],
)
def test_flash_attention_is_the_default_on_newer_cards_with_mate(monkeypatch, packages, capability, first):
    install(monkeypatch, *packages, capability=capability)
    assert musa.PLATFORM.available()
    assert musa.PLATFORM.attention_preference[0] == first


def test_generations_are_compared_as_numbers(monkeypatch):
    install(monkeypatch, "torch_musa", "mate", capability=(10, 0))
    assert musa.PLATFORM.devices()[0].capability == "10.0"
    assert musa.PLATFORM.attention_preference[0] == "FLASH_ATTN"
