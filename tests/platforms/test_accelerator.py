"""What every accelerator does with torch's module of its kind, on a stand-in for that module."""

from __future__ import annotations

import pytest
import torch
from tests.support.devices import MEBIBYTE, Runtime

from omnireel.platforms import all_platforms
from omnireel.platforms.accelerator import Accelerator

KINDS = [platform for platform in all_platforms() if isinstance(platform, Accelerator)]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request, monkeypatch) -> Accelerator:
    runtime, found = Runtime(), request.param
    monkeypatch.setattr(type(found), "runtime", lambda self: runtime)
    monkeypatch.setattr(type(found), "capability", lambda self, index: "")
    assert isinstance(found, Accelerator)
    return found


def test_there_is_a_file_for_each_kind_that_is_documented():
    assert [kind.name for kind in KINDS] == ["cuda", "musa", "npu", "rocm", "xpu"]


def test_devices_are_told_in_order(kind):
    assert [(item.index, item.name, item.total_bytes) for item in kind.devices()] == [
        (0, "a card", 64 * MEBIBYTE),
        (1, "a card", 64 * MEBIBYTE),
    ]


def test_memory_and_waiting_are_those_of_the_index(kind):
    kind.synchronize(1)
    kind.reset_peak_memory(1)
    kind.release_memory(1)
    assert (kind.peak_memory_bytes(1), kind.free_memory_bytes(1)) == (2 * MEBIBYTE, 4 * MEBIBYTE)
    assert kind.runtime().calls == [("synchronize", 1), ("init", None), ("reset", 1), ("empty", None)]


def test_a_device_is_the_current_one_within_its_block(kind):
    with kind.use(1):
        kind.synchronize(1)
    assert kind.runtime().calls == [("enter", 1), ("synchronize", 1), ("leave", 1)]


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("XX out of memory. Tried to allocate 2.50 GiB. Card 0 has ..."), MemoryError()],
    ids=["device", "host"],
)
def test_running_out_of_memory_is_recognised(kind, error):
    assert kind.out_of_memory(error, "decode", 1) is not None


def test_another_error_is_not_taken_for_it(kind):
    assert kind.out_of_memory(RuntimeError("an illegal memory access"), "step") is None
    assert kind.out_of_memory(ValueError("out of memory"), "step") is None


def test_the_bytes_that_were_asked_for_are_read(kind):
    error = torch.OutOfMemoryError("Tried to allocate 2.50 GiB")
    found = kind.out_of_memory(error, "decode", 1)
    assert found is not None
    assert (found.details["asked_bytes"], found.details["free_bytes"]) == (int(2.5 * 2**30), 4 * MEBIBYTE)


def test_only_kinds_that_were_run_say_so():
    assert [kind.name for kind in KINDS if kind.traits.is_run_on_hardware] == ["cuda"]
