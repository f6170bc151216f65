"""What crosses a process is plain data and arrays; nothing that comes in can run code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.engines import ticket

from omnireel.engine.message import Kind, StageMessage, from_parts, to_parts
from omnireel.engine.runner import RunReport
from omnireel.errors import OutOfMemory
from omnireel.models.protocol import Role
from omnireel.platforms import find_platform
from omnireel.request import MediaInput, MediaKind, MediaOutput, StepEvent


def there_and_back(body):
    return from_parts(*to_parts(StageMessage(kind=Kind.RUN, request_id="req_1", body=body))).body


@pytest.mark.parametrize(
    "body",
    [
        None,
        True,
        3,
        0.1,
        float("inf"),
        "text",
        b"bytes",
        [1, [2]],
        (1, ("a", None)),
        {"a": (1,), 3: {"!": "map"}},
        frozenset({"a", "b"}),
        Path("/a/b"),
        MediaKind.AUDIO,
        Role.DENOISER,
        StepEvent(request_id="req_1", index=1, total=2, seconds=0.5),
    ],
)
def test_data_comes_out_as_it_went_in(body):
    back = there_and_back(body)
    assert back == body
    assert type(back) is type(body)


def test_a_workload_comes_out_as_it_went_in():
    workload = ticket(extra_args={"step_seconds": 0.5}).workload
    assert there_and_back(workload) == workload


def test_arrays_travel_beside_the_head_and_are_not_copied():
    frames = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    output = MediaOutput(frames=frames, fps=24.0, latents={"a": np.ones((2,), np.float32)})
    report = RunReport(output=output, durations={"encode": 0.5}, peak_memory_mb=1.0)
    head, arrays = to_parts(StageMessage(kind=Kind.DONE, request_id="req_1", body=report))
    assert arrays[0] is frames
    assert len(head) < 1000
    message = from_parts(head, arrays)
    assert message.body.output.frames is frames
    assert (message.kind, message.request_id) == (Kind.DONE, "req_1")
    assert there_and_back(MediaInput(kind=MediaKind.IMAGE, role="a", frames=frames)).frames is not None


def test_errors_and_platforms_travel_by_their_codes_and_names():
    error = there_and_back(OutOfMemory("decode", 10, 5))
    assert isinstance(error, OutOfMemory)
    assert error.details["asked_bytes"] == 10
    cpu = find_platform("cpu")
    assert there_and_back(cpu) is cpu


def test_numbers_of_numpy_become_plain():
    assert there_and_back([np.float64(0.5), np.int32(3)]) == [0.5, 3]


@pytest.mark.parametrize("body", [object(), lambda: None, np.array([object()]), {1: {2}}])
def test_what_may_not_travel_is_told(body):
    with pytest.raises(TypeError, match="may not travel"):
        to_parts(StageMessage(kind=Kind.RUN, body=body))


@pytest.mark.parametrize(
    "body",
    [
        {"!": "type", "name": "os:system", "v": {}},
        {"!": "type", "name": "subprocess:Popen", "v": {"args": "true"}},
        {"!": "type", "name": "omnireel.engine.message:to_parts", "v": {}},
        {"!": "type", "name": "omnireel.engine.worker:Worker", "v": {"link": None}},
        {"!": "type", "name": "omnireel.request:StepEvent", "v": {"nothing": 1}},
        {"!": "enum", "v": ["omnireel.request:StepEvent", 1]},
        {"!": "array", "v": 7},
        {"!": "unknown", "v": 7},
        {"no": "tag"},
    ],
)
def test_what_is_no_message_is_refused(body):
    head = json.dumps({"kind": "run", "request_id": "", "body": body}).encode()
    with pytest.raises(ValueError, match=r"."):
        from_parts(head, [])


@pytest.mark.parametrize("head", [b"", b"[]", b"{}", b'{"kind": "other", "request_id": "", "body": null}', b"\xff"])
def test_a_head_that_is_none_is_refused(head):
    with pytest.raises(ValueError, match=r"."):
        from_parts(head, [])
