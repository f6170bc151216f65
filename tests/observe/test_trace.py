"""Traces: what they hold, where they lie, and that one cannot disturb another."""

from __future__ import annotations

import gzip
import json
import logging
import sys
import threading
from pathlib import Path

import pytest
import torch
from tests.support.processes import until

from omnireel.errors import Conflict, EngineError, StorageFailed
from omnireel.observe.trace import TraceOrder, Tracer


@pytest.fixture
def tracer():
    one = Tracer()
    yield one
    one.close()


def order(folder: Path, **values) -> TraceOrder:
    return TraceOrder(**{"folder": folder, "name": "trace-0", "max_seconds": 60.0, **values})


def names_of(path: Path) -> set[str]:
    with gzip.open(path) as file:
        return {event["name"] for event in json.load(file)["traceEvents"]}


def test_operations_of_other_threads_are_recorded_and_only_those_between_start_and_stop(tracer, tmp_path):
    worker = threading.Thread(target=lambda: torch.ones(3).cumsum(0))
    torch.ones(3).cumprod(0)
    tracer.start(order(tmp_path / "new" / "folder"))
    worker.start()
    worker.join()
    path = tracer.stop()
    assert path is not None
    assert (path.parent, path.name.startswith("trace-0-")) == (tmp_path / "new" / "folder", True)
    names = names_of(path)
    assert "aten::cumsum" in names
    assert "aten::cumprod" not in names


def test_one_that_nobody_ends_ends_by_itself_and_is_kept(tracer, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        tracer.start(order(tmp_path, max_seconds=0.1))
        until(lambda: "ends by itself" in caplog.text)
        torch.ones(3).cumprod(0)
        path = tracer.stop()
    assert path is not None
    assert "aten::cumprod" not in names_of(path)
    assert tracer.stop() is None


def test_a_process_records_one_trace_at_a_time(tracer, tmp_path):
    tracer.start(order(tmp_path))
    other = Tracer()
    with pytest.raises(Conflict):
        other.start(order(tmp_path, name="other"))
    assert tracer.stop() is not None
    other.start(order(tmp_path, name="other"))
    other.close()
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["trace"]


def test_a_folder_that_cannot_be_made_is_told_at_once(tracer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="traces cannot be written"):
        tracer.start(order(tmp_path / "file"))


def test_a_torch_without_the_profilers_private_name_is_told_and_holds_no_lock(tmp_path, monkeypatch):
    order = TraceOrder(folder=tmp_path, name="trace", max_seconds=30)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch._C._profiler", None)
        with pytest.raises(EngineError, match="profiler does not start"):
            Tracer().start(order)
    assert not list(tmp_path.iterdir())
    tracer = Tracer()
    tracer.start(order)
    tracer.close()
