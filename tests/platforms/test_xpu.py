"""Intel cards, on a stand-in for torch.xpu: nothing here was run on such hardware."""

from __future__ import annotations

import pytest
import torch
from tests.support.devices import Runtime

from omnireel.platforms import xpu


def test_without_a_card_it_says_so(monkeypatch):
    monkeypatch.setattr(torch, "xpu", Runtime(0))
    assert xpu.PLATFORM.why_not() == "torch sees no Intel card"


@pytest.mark.parametrize(
    ("architecture", "preference"),
    [(13136561920, ("TORCH_SDPA",)), (21479031808, ("FLASH_ATTN", "TORCH_SDPA"))],
)
def test_flash_attention_is_the_default_but_for_one_architecture(monkeypatch, architecture, preference):
    monkeypatch.setattr(torch, "xpu", Runtime(capability={"architecture": architecture}))
    assert xpu.PLATFORM.available()
    assert xpu.PLATFORM.attention_preference == preference
