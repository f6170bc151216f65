"""The processor tells its memory and recognises when it ran out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omnireel.platforms.cpu import PLATFORM


def test_it_is_there_with_one_device():
    (info,) = PLATFORM.devices()
    assert PLATFORM.available()
    assert info.total_bytes > PLATFORM.free_memory_bytes() > 0


def test_peak_memory_sees_what_was_taken_and_given_back():
    PLATFORM.reset_peak_memory()
    before = PLATFORM.peak_memory_bytes()
    block = np.ones(256 * 2**20, np.uint8)
    del block
    # Half of it, for a machine short of memory takes pages of files from us meanwhile.
    assert PLATFORM.peak_memory_bytes() >= before + 128 * 2**20


def test_a_reset_forgets_the_old_peak():
    block = np.ones(256 * 2**20, np.uint8)
    high = PLATFORM.peak_memory_bytes()
    del block
    PLATFORM.reset_peak_memory()
    assert PLATFORM.peak_memory_bytes() < high - 128 * 2**20


def test_torchs_allocator_error_is_recognised_with_its_size():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    error = PLATFORM.out_of_memory(raised.value, "decode")
    assert error is not None
    assert error.details["asked_bytes"] == 2**60


def test_a_memory_error_is_recognised_and_others_are_not():
    assert PLATFORM.out_of_memory(MemoryError(), "step") is not None
    assert PLATFORM.out_of_memory(RuntimeError("shapes differ"), "step") is None


def test_giving_memory_back_is_always_possible():
    PLATFORM.release_memory()


def test_a_machine_without_proc_has_a_name_and_a_peak(monkeypatch, tmp_path):
    for file in ("_STATUS", "_CLEAR_REFS", "_CPUINFO"):
        monkeypatch.setattr(f"omnireel.platforms.cpu.{file}", tmp_path / "missing" / "file")
    PLATFORM.reset_peak_memory()
    assert PLATFORM.peak_memory_bytes() > 2**20
    assert PLATFORM.devices()[0].name


def test_a_call_is_its_own_recording():
    assert PLATFORM.capture(lambda: 3)() == 3
