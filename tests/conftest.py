"""What every test gets: a clean environment, one torch thread, no hub, and a skip where hardware is missing."""

from __future__ import annotations

import os

import pytest
import torch

torch.set_num_threads(1)
# Hub libraries read these when they are imported, which is before any fixture runs.
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("OMNIREEL_", "VLLM_")) or name == "DIFFUSION_ATTENTION_BACKEND":
            monkeypatch.delenv(name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hardware markers: a test that needs what is not here is skipped and says so."""
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed = next((marker.args[0] for marker in item.iter_markers("gpus")), 1 if item.get_closest_marker("gpu") else 0)
    if cards < needed:
        pytest.skip(f"needs {needed} accelerator(s), {cards} here")
    least = next((marker.args[0] for marker in item.iter_markers("sm")), 0)
    if least and (not cards or torch.cuda.get_device_capability() < divmod(least, 10)):
        pytest.skip(f"needs an NVIDIA card of compute capability {least // 10}.{least % 10}")
    if item.get_closest_marker("npu"):
        pytest.skip("needs an Ascend device")
