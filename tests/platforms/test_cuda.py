"""What can be said of NVIDIA cards without one, and what must hold with one."""

from __future__ import annotations

import pytest
import torch

from omnireel.platforms.cuda import PLATFORM


def test_it_says_why_it_is_not_there():
    assert PLATFORM.available() == (PLATFORM.why_not() == "")


def test_the_size_that_was_asked_for_is_read_from_torchs_words(monkeypatch):
    monkeypatch.setattr(type(PLATFORM), "free_memory_bytes", lambda self, index=0: 5)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has ...")
    found = PLATFORM.out_of_memory(error, "decode")
    assert found is not None
    assert found.details == {"where": "decode", "asked_bytes": int(2.5 * 2**30), "free_bytes": 5}


def test_other_errors_are_not_taken_for_it():
    assert PLATFORM.out_of_memory(RuntimeError("an illegal memory access"), "step") is None


@pytest.mark.gpu
def test_peak_memory_counts_tensors():
    PLATFORM.reset_peak_memory()
    before = PLATFORM.peak_memory_bytes()
    torch.ones(2**20, device=PLATFORM.device())
    assert PLATFORM.peak_memory_bytes() >= before + 4 * 2**20


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    ],
)
def test_libraries_that_ran_out_are_recognised_by_their_words(monkeypatch, words):
    monkeypatch.setattr(type(PLATFORM), "free_memory_bytes", lambda self, index=0: 5)
    assert PLATFORM.out_of_memory(RuntimeError(words), "decode") is not None


def test_memory_of_the_machine_is_recognised_too():
    assert PLATFORM.out_of_memory(MemoryError(), "decode") is not None


def test_free_memory_is_that_of_the_device_in_question(monkeypatch):
    monkeypatch.setattr(type(PLATFORM), "free_memory_bytes", lambda self, index=0: index)
    found = PLATFORM.out_of_memory(torch.OutOfMemoryError("out of memory"), "decode", 3)
    assert found is not None
    assert found.details["free_bytes"] == 3
