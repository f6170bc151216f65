"""What can be said of NVIDIA cards without one, and what must hold with one."""

from __future__ import annotations

import pytest
import torch

from omnireel.platforms import cuda
from omnireel.platforms.cuda import PLATFORM
from omnireel.platforms.interface import DeviceInfo


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


BLACKWELL = ("TRTLLM_ATTN", "CUDNN_ATTN", "FLASHINFER_ATTN", "TORCH_SDPA")


@pytest.mark.parametrize(
    ("capabilities", "preference"),
    [
        ((), ("TORCH_SDPA",)),
        (("7.5",), ("TORCH_SDPA",)),
        (("8.0",), ("FLASH_ATTN", "TORCH_SDPA")),
        (("8.9",), ("FLASH_ATTN", "TORCH_SDPA")),
        (("9.0",), ("FLASH_ATTN", "CUDNN_ATTN", "TORCH_SDPA")),
        (("10.0",), BLACKWELL),
        (("12.1",), BLACKWELL),
        (("10.0", "9.0"), ("FLASH_ATTN", "CUDNN_ATTN", "TORCH_SDPA")),
    ],
)
def test_attention_goes_by_the_oldest_card(monkeypatch, capabilities, preference):
    cards = tuple(
        DeviceInfo(index=index, name="card", total_bytes=1, capability=item) for index, item in enumerate(capabilities)
    )
    monkeypatch.setattr(type(PLATFORM), "available", lambda self: bool(cards))
    monkeypatch.setattr(type(PLATFORM), "devices", lambda self: cards)
    assert PLATFORM.attention_preference == preference


def test_on_blackwell_only_the_fourth_flash_attention_counts(monkeypatch):
    card = DeviceInfo(index=0, name="card", total_bytes=1, capability="10.0")
    monkeypatch.setattr(type(PLATFORM), "available", lambda self: True)
    monkeypatch.setattr(type(PLATFORM), "devices", lambda self: (card,))
    monkeypatch.setattr(cuda, "version", lambda distribution: {"flash-attn-4": "4.0"}[distribution])
    assert PLATFORM.attention_preference == (*BLACKWELL[:-1], "FLASH_ATTN", "TORCH_SDPA")


def test_a_graph_is_warmed_up_on_a_stream_of_its_own_and_recorded_there(monkeypatch):
    """In the order that torch documents: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs."""
    events: list[str] = []

    class Stream:
        def __init__(self, device=None, name="side"):
            self.name = name

        def wait_stream(self, other):
            events.append(f"{self.name} waits for {other.name}")

    class Inside:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            events.append(f"enter {self.name}")

        def __exit__(self, *_):
            events.append(f"leave {self.name}")

    class Graph:
        def replay(self):
            events.append("replay")

    main = Stream(name="main")
    monkeypatch.setattr(torch.cuda, "device", lambda device: Inside(str(device)))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: Inside(stream.name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(
        torch.cuda,
        "graph",
        lambda graph, stream, capture_error_mode: Inside(f"{capture_error_mode} graph on {stream.name}"),
    )

    def call():
        events.append("call")
        return len(events)

    replay = PLATFORM.capture(call, 1)
    recorded = [
        "enter cuda:1", "side waits for main", "enter side", "call", "call", "call", "leave side", "main waits for side",
        "enter thread_local graph on side", "call", "leave thread_local graph on side", "leave cuda:1",
    ]  # fmt: skip
    assert events == recorded
    assert [replay(), replay()] == [10, 10]
    assert events == [*recorded, "replay", "replay"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA card")
def test_a_replay_computes_from_what_is_there_by_then():
    x = torch.ones(4, device="cuda")
    replay = PLATFORM.capture(lambda: x * 2)
    x.fill_(3)
    assert replay().tolist() == [6.0] * 4
