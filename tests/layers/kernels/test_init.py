import importlib.util

import pytest

from omnireel.layers import kernels


def test_triton_is_needed_for_the_fused_spelling_alone(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert kernels.why_not_fused() == "the package triton is not installed"


@pytest.mark.skipif(kernels.why_not_fused() is not None, reason="the package triton is not installed")
def test_the_fused_spelling_is_found():
    assert kernels.fused().name == "fused"
