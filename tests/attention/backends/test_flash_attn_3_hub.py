import pytest

from omnireel.attention import Place
from omnireel.attention.backends import flash_attn_3_hub
from omnireel.attention.flash import FlashKernel
from omnireel.attention.hub import FLASH_2, FLASH_3


@pytest.mark.parametrize(
    ("capability", "repository", "words"),
    [("9.0", FLASH_3, ""), ("8.6", FLASH_2, "capability 8.6 has no FlashAttention 3")],
)
def test_older_cards_are_given_generation_2_and_told_so(monkeypatch, caplog, capability, repository, words):
    def loaded(name):
        return FlashKernel(source=name, dense=print, varlen=None)

    monkeypatch.setattr(flash_attn_3_hub, "hub_kernel", loaded)
    bound = flash_attn_3_hub.BACKEND.bind(Place(platform="cuda", capability=capability), None)
    assert bound.describe() == f"FLASH_ATTN_3_HUB ({repository})"
    assert words in caplog.text
    assert bool(caplog.text) is bool(words)
