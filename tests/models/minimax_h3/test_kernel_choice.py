import dataclasses

import pytest
from tests.models.minimax_h3.test_pipeline import context

from omnireel.acceleration import Acceleration
from omnireel.errors import MissingPackage
from omnireel.layers.kernels import PLAIN, TRACEABLE
from omnireel.models.minimax_h3 import kernel_choice
from omnireel.models.minimax_h3.kernel_choice import denoiser_kernels, vae_kernels


def told(**switches):
    return dataclasses.replace(context(), acceleration=Acceleration(**switches))


@pytest.fixture
def _no_triton(monkeypatch):
    monkeypatch.setattr(kernel_choice, "why_not_fused", lambda: "the package triton is not installed")


@pytest.mark.usefixtures("_no_triton")
@pytest.mark.parametrize("choose", [denoiser_kernels, vae_kernels])
def test_fused_kernels_without_triton_are_refused(choose):
    with pytest.raises(MissingPackage, match="triton"):
        choose(told(fused_kernels="on"))


@pytest.mark.usefixtures("_no_triton")
def test_without_triton_auto_runs_blocks_as_they_are_written(monkeypatch, caplog):
    monkeypatch.setattr(Acceleration, "is_on", lambda self, switch, *_: switch in ("fused_kernels", "fused_vae"))
    assert denoiser_kernels(context()) is vae_kernels(context()) is PLAIN
    assert "the package triton is not installed" in caplog.text


def test_fused_kernels_serve_both(monkeypatch):
    monkeypatch.setattr(kernel_choice, "why_not_fused", lambda: None)
    monkeypatch.setattr(kernel_choice, "fused", lambda: TRACEABLE)
    assert denoiser_kernels(told(fused_kernels="on")) is vae_kernels(told(fused_kernels="on")) is TRACEABLE


def test_compiled_blocks_are_spelled_for_a_compiler_and_nothing_else_is():
    assert denoiser_kernels(told(compile_blocks="on")) is TRACEABLE
    assert vae_kernels(told(compile_blocks="on")) is PLAIN
    assert denoiser_kernels(told()) is PLAIN
