import pytest
import torch
from tests.attention.conftest import Recorder, dense

from omnireel.attention import Place
from omnireel.attention.backends import flash_attn_hub
from omnireel.attention.backends.torch_sdpa import BACKEND as SDPA
from omnireel.attention.hub import FLASH_2, hub_kernel
from omnireel.attention.metadata import ONE_DOCUMENT


def test_it_runs_the_kernel_of_the_hub(stand_in, qkv):
    hub_kernel.cache_clear()
    recorder = Recorder(dense)
    asked: list[str] = []

    class Module:
        flash_attn_func = staticmethod(recorder)

    def get_kernel(repository, *, version):
        asked.append(repository)
        return Module

    stand_in("kernels", get_kernel=get_kernel)
    bound = flash_attn_hub.BACKEND.bind(Place(platform="cuda", capability="8.6"), None)
    q, k, v = qkv(7)
    made = bound.forward(q, k, v, scale=0.1, causal=True, metadata=ONE_DOCUMENT)
    torch.testing.assert_close(made, SDPA.forward(q, k, v, scale=0.1, causal=True, metadata=ONE_DOCUMENT))
    assert asked == [FLASH_2]
    hub_kernel.cache_clear()


def test_without_the_library_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("omnireel.attention.backend.installed", lambda name: False)
    assert flash_attn_hub.BACKEND.missing(Place(platform="cuda")) == "pip install kernels"


@pytest.mark.parametrize(("capability", "fits"), [("8.9", True), ("9.0", True), ("10.0", False), ("7.5", False)])
def test_it_is_for_ampere_to_hopper(capability, fits):
    assert (capability.partition(".")[0] in flash_attn_hub.BACKEND.can.capabilities) is fits
