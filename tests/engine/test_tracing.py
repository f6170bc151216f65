"""Profiles of an engine: one trace a process that computes, in this process and in workers, and clear words where there is none."""

from __future__ import annotations

import gzip
import json
import os
import signal
from pathlib import Path

import pytest
from tests.support.engines import Heard, request
from tests.support.processes import until

from omnireel.api import Omni
from omnireel.config import resolve
from omnireel.engine.staged import make_engine
from omnireel.errors import Conflict, EngineError, Unavailable, WorkerDied
from omnireel.models.discover import topology_of
from omnireel.request import DiffusionSamplingParams


def names_of(path: Path) -> set[str]:
    with gzip.open(path) as file:
        return {event["name"] for event in json.load(file)["traceEvents"]}


def ran(engine) -> None:
    heard = Heard()
    heard.ticket = engine.submit(request(), heard)
    heard.result()


def test_without_a_folder_nothing_is_recorded_and_a_request_cannot_name_one(start):
    engine = start()
    with pytest.raises(Conflict, match="no folder") as told:
        engine.start_profile()
    assert "--torch-profiler-dir" in told.value.hint


def test_it_is_started_once_and_stopped_once(start, tmp_path):
    engine = start(torch_profiler_dir=tmp_path)
    with pytest.raises(Conflict, match="no profile"):
        engine.stop_profile()
    engine.start_profile()
    with pytest.raises(Conflict, match="already"):
        engine.start_profile()
    ran(engine)
    (path,) = engine.stop_profile()
    assert path.name.startswith("trace-0-")
    assert path.is_relative_to(tmp_path)
    engine.close()
    with pytest.raises(Unavailable):
        engine.start_profile()


def test_an_engine_that_is_closed_while_it_records_leaves_nothing(start, tmp_path):
    engine = start(torch_profiler_dir=tmp_path)
    engine.start_profile()
    engine.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_each_replica_writes_a_trace_of_its_own_process_also_during_a_step(start, tmp_path):
    engine = start(torch_profiler_dir=tmp_path, num_replicas=2)
    heard = Heard()
    heard.ticket = engine.submit(request(extra_args={"step_seconds": 0.3}, num_inference_steps=50), heard)
    until(lambda: heard.steps)
    engine.start_profile()
    paths = engine.stop_profile()
    heard.ticket.cancel()
    pids = [replica.pid for replica in engine.health.replicas]
    assert [path.name.split("-")[1] for path in paths] == ["0", "1"]
    assert [path.name.split("-")[4].split(".")[0] for path in paths] == [str(pid) for pid in pids]
    assert all(names_of(path) for path in paths)


@pytest.mark.slow
def test_a_worker_that_dies_while_it_is_recorded_is_told_and_the_next_one_can_be(start, tmp_path):
    engine = start(torch_profiler_dir=tmp_path, distributed_executor_backend="mp")
    engine.start_profile()
    pid = engine.health.replicas[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not engine.is_ready)
    with pytest.raises(WorkerDied):
        engine.stop_profile()
    until(lambda: engine.is_ready)
    engine.start_profile()
    assert len(engine.stop_profile()) == 1


def test_a_folder_that_cannot_be_written_fails_the_start_and_leaves_no_profile(start, tmp_path):
    (tmp_path / "file").write_text("")
    engine = start(torch_profiler_dir=tmp_path / "file")
    with pytest.raises(EngineError, match="cannot be written"):
        engine.start_profile()
    with pytest.raises(Conflict, match="no profile"):
        engine.stop_profile()


def test_stages_of_one_process_share_a_trace(tmp_path):
    flags = {"pipeline": "toy_story", "device": "cpu", "torch_profiler_dir": tmp_path}
    engine = make_engine(resolve(flags, {}, topology=topology_of))
    engine.start()
    try:
        engine.start_profile()
        assert len(engine.stop_profile()) == 1
    finally:
        engine.close()


def test_the_model_s_work_is_in_the_trace(tmp_path):
    with Omni("mini-h3", device="cpu", torch_profiler_dir=tmp_path) as omni:
        omni.start_profile()
        omni.generate("a kite", DiffusionSamplingParams(height=64, width=64, num_frames=96, num_inference_steps=2))
        (path,) = omni.stop_profile()
    assert "aten::scaled_dot_product_attention" in names_of(path)
