"""Pipelines of several stages: what is handed on, and one end for every request whatever happens in whichever stage."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.engines import Heard
from tests.support.language_model import write_language_model

from omnireel.config import resolve
from omnireel.engine.orchestrator import Engine
from omnireel.engine.staged import StagedEngine, make_engine
from omnireel.errors import BadSetting, Cancelled, DeadlineExceeded, EngineError, InvalidRequest, OutOfMemory, QueueFull
from omnireel.models.discover import topology_of
from omnireel.request import DiffusionSamplingParams, GenerationRequest, OutputSpec


def engine_of(**flags) -> StagedEngine:
    made = make_engine(resolve({"pipeline": "toy_story", "device": "cpu", **flags}, {}, topology=topology_of))
    assert isinstance(made, StagedEngine)
    return made


def asked(prompt="a kite", *, timeout_seconds=None, output=None, request_id=None, **values):
    sampling = DiffusionSamplingParams(**{"height": 16, "width": 16, "num_frames": 3, "seed": 1, **values})
    more = {} if request_id is None else {"request_id": request_id}
    return GenerationRequest(
        prompt=prompt, sampling=sampling, timeout_seconds=timeout_seconds, output=output or OutputSpec(), **more
    )


def submitted(engine, *args, **values) -> Heard:
    heard = Heard()
    heard.ticket = engine.submit(asked(*args, **values), heard)
    return heard


@pytest.fixture(scope="module")
def engine():
    made = engine_of()
    made.start()
    yield made
    made.close()


@pytest.fixture
def start():
    engines = []

    def started(**flags):
        engines.append(engine_of(**flags))
        engines[-1].start()
        return engines[-1]

    yield started
    for made in engines:
        made.close()


def test_one_stage_needs_no_pipeline():
    assert isinstance(make_engine(resolve({"model": "toy", "device": "cpu"}, {}, topology=topology_of)), Engine)


def test_a_clip_is_made_by_three_stages(engine):
    heard = submitted(engine)
    result: Any = heard.result()
    # The same by hand: words, then colours, then frames.
    words = _words("a kite", 1)
    levels, level = [], np.full(3, 0.5)
    for word in words:
        level = np.mod(0.5 * level + word * np.array([1.0, 2.0, 3.0]), 1.0)
        levels.append(np.rint(255 * level))
    assert result.frames.shape == (3, 16, 16, 3)
    assert np.array_equal(result.frames[:, 0, 0], np.array(levels[:3]))
    assert {"words.denoise", "levels.denoise", "denoise"} <= result.stage_durations.keys()
    assert [(event.stage, event.index, event.total) for event in heard.steps] == [
        (stage, 6 * number + k, 18) for number, stage in enumerate(("words", "levels", "scene")) for k in range(1, 7)
    ]


def _words(prompt, seed):
    digests = (hashlib.sha256(f"{prompt} {seed} {k}".encode()).digest() for k in range(6))
    return [int.from_bytes(digest[:4], "little") / 2**32 for digest in digests]


def test_every_stage_draws_from_the_seed_that_is_told(engine):
    drawn: Any = submitted(engine, seed=None).result()
    again: Any = submitted(engine, seed=drawn.seed).result()
    assert np.array_equal(drawn.frames, again.frames)


def test_the_main_stage_writes_the_file(engine, tmp_path):
    result: Any = submitted(engine, output=OutputSpec(path=tmp_path / "a.mp4")).result()
    assert result.encoded.path.is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
    assert result.recipe is None


def test_many_at_once_are_each_their_own(engine):
    prompts = [f"kite {k}" for k in range(12)]
    heard = [submitted(engine, prompt) for prompt in prompts]
    for prompt, one in zip(prompts, heard, strict=True):
        first = np.mod(0.25 + _words(prompt, 1)[0] * np.array([1.0, 2.0, 3.0]), 1.0)
        made: Any = one.result()
        assert np.array_equal(made.frames[0, 0, 0], np.rint(255 * first))


@pytest.mark.parametrize("stage", ["words", "levels", "scene"])
def test_a_failure_in_any_stage_ends_that_request_and_no_other(engine, stage):
    bad, good = submitted(engine, extra_args={stage: {"fail": 2}}), submitted(engine)
    assert isinstance(bad.error(), EngineError)
    good.result()
    assert len(bad.finals) == 1


@pytest.mark.parametrize("stage", ["words", "levels", "scene"])
def test_a_request_is_given_up_in_any_stage(engine, stage):
    heard = submitted(engine, extra_args={"num_words": 200, stage: {"step_seconds": 0.05}})
    _until(lambda: any(event.stage == stage for event in heard.steps))
    engine.cancel(heard.ticket.request_id)
    assert isinstance(heard.error(), Cancelled)
    submitted(engine).result()
    assert len(heard.finals) == 1


def test_time_is_that_of_all_stages_together(engine):
    slow = {"words": {"step_seconds": 0.02}, "levels": {"step_seconds": 0.02}, "scene": {"step_seconds": 0.2}}
    error = submitted(engine, extra_args=slow, timeout_seconds=0.5).error()
    assert isinstance(error, DeadlineExceeded)
    assert "0.5 s" in error.message
    assert "stage scene" in error.message


def test_what_any_stage_refuses_is_refused_before_the_first_begins(engine):
    with pytest.raises(InvalidRequest, match=r"^extra_args\.scene\.fail"):
        submitted(engine, extra_args={"scene": {"fail": -1}})
    with pytest.raises(InvalidRequest, match=r"^height"):
        engine.admit(asked(height=7))


def test_an_id_under_way_and_a_full_pipeline_are_refused(start):
    engine = start(max_queue=1)
    held = {"words": {"step_seconds": 0.3}}
    first = [submitted(engine, request_id=f"r{k}", extra_args=held) for k in range(2)]
    with pytest.raises(InvalidRequest, match="under way"):
        submitted(engine, request_id="r0")
    more = [submitted(engine, request_id=f"r{k}", extra_args=held) for k in (2, 3)]
    with pytest.raises(QueueFull):
        submitted(engine)
    for heard in (*first, *more):
        heard.ticket.cancel()
        heard.error()


def test_closing_ends_everything_wherever_it_is(start):
    engine = start()
    heard = [submitted(engine, extra_args={stage: {"step_seconds": 0.05}}) for stage in ("words", "levels", "scene")]
    _until(lambda: all(one.steps for one in heard[:1]))
    engine.close()
    assert all(isinstance(one.error(), Cancelled) for one in heard)
    with pytest.raises(EngineError, match="closed"):
        submitted(engine)
    engine.close()


def test_a_stage_that_cannot_be_loaded_ends_the_start(tmp_path):
    engine = make_engine(
        resolve(
            {"pipeline": "prompt_rewrite", "model": "toy", "stage_0_model": str(tmp_path), "device": "cpu"},
            {},
            topology=topology_of,
        )
    )
    with pytest.raises(Exception, match=r"config\.json"):
        engine.start()
    with pytest.raises(EngineError, match="closed"):
        engine.start()


def test_figures_are_those_of_the_pipeline(start):
    engine = start()
    submitted(engine).result()
    submitted(engine, extra_args={"levels": {"fail": 1}}).error()
    text = engine.metrics.text()
    assert 'omnireel_requests_total{status="ok",task="t2va"} 1.0' in text
    assert 'omnireel_requests_total{status="engine_error",task="t2va"} 1.0' in text
    assert 'omnireel_stage_seconds_count{stage="levels.denoise"} 1.0' in text
    assert "omnireel_step_seconds_count 24.0" in text
    assert re.search(r'^omnireel_device_memory_bytes{device="cpu:0",kind="peak"} [1-9]', text, re.MULTILINE)
    assert text.count("omnireel_requests_total{") == 2


def test_a_mistake_in_a_hand_over_is_a_bug_of_that_request(engine, monkeypatch):
    stage = engine._stages[1]

    def odd(request, outputs):
        if outputs:
            raise ZeroDivisionError
        return request

    monkeypatch.setattr(engine, "_stages", (engine._stages[0], replace(stage, asked=odd), engine._stages[2]))
    error = submitted(engine).error()
    assert error.details["bug"]
    assert "the input of stage levels" in error.message


def test_stages_in_workers_make_the_same_clip_and_their_health_is_told(engine, start):
    apart = start(distributed_executor_backend="mp", num_threads=1)
    health = apart.health
    assert (health.is_live, health.is_ready, apart.is_alive) == (True, True, True)
    assert len({replica.pid for replica in health.replicas}) == 3
    assert [replica.name for replica in health.replicas] == [f"{s.facts.name}.0" for s in apart._stages]
    here: Any = submitted(engine).result().frames
    assert (submitted(apart).result().frames == here).all()
    os.kill(health.replicas[1].pid, signal.SIGKILL)
    _until(lambda: not apart.health.is_ready)
    assert apart.is_alive
    _until(lambda: apart.health.is_ready)
    assert (submitted(apart).result().frames == here).all()
    apart.close()
    assert not apart.is_alive


@pytest.mark.parametrize("connector", [None, "MemoryConnector", "SharedMemoryConnector", "TcpConnector"])
@pytest.mark.parametrize("async_chunk", [False, True])
def test_whichever_way_arrays_go_the_clip_is_the_same(engine, start, connector, async_chunk):
    expected: Any = submitted(engine).result()
    found = submitted(start(stage_connector=connector, async_chunk=async_chunk))
    result: Any = found.result()
    assert np.array_equal(result.frames, expected.frames)
    assert result.recipe is None
    assert [event.index for event in found.steps] == list(range(1, 19))
    assert {event.total for event in found.steps} == {18}
    assert all(event.chunk is None for event in found.steps)


def test_a_stage_begins_on_the_first_part_of_its_input(start):
    engine = start(async_chunk=True)
    heard = submitted(engine, extra_args={"num_words": 9, "words": {"step_seconds": 0.05}})
    heard.result()
    stages = [event.stage for event in heard.steps]
    assert stages.index("scene") < len(stages) - 1 - stages[::-1].index("words")
    assert [stages.count(stage) for stage in ("words", "levels", "scene")] == [9, 9, 9]


@pytest.mark.parametrize("stage", ["words", "levels", "scene"])
@pytest.mark.parametrize("how", ["fail", "cancel", "late"])
def test_parts_under_way_end_with_their_request(start, stage, how):
    engine = start(async_chunk=True)
    slow = {name: {"step_seconds": 0.03} for name in ("words", "levels", "scene")}
    slow[stage] = {"step_seconds": 0.1, **({"fail": 3} if how == "fail" else {})}
    heard = submitted(engine, extra_args={"num_words": 30, **slow}, timeout_seconds=0.6 if how == "late" else None)
    if how == "cancel":
        _until(lambda: any(event.stage == stage for event in heard.steps))
        heard.ticket.cancel()
    expected = {"fail": "engine_error", "cancel": "cancelled", "late": "deadline_exceeded"}[how]
    assert heard.error().code == expected
    assert submitted(engine).result().frames is not None
    assert len(heard.finals) == 1


@pytest.fixture(scope="module")
def workers():
    made = engine_of(
        distributed_executor_backend="mp", async_chunk=True, stage_2_stage_connector="TcpConnector",
        rerun_interrupted=True, num_threads=1,
    )  # fmt: skip
    made.start()
    yield made
    made.close()


def test_stages_in_processes_of_their_own_make_the_same_clip(engine, workers):
    expected: Any = submitted(engine).result()
    made: Any = submitted(workers).result()
    assert np.array_equal(made.frames, expected.frames)
    health = workers.health
    assert [replica.name for replica in health.replicas] == ["words.0", "levels.0", "scene.0"]
    assert len({replica.pid for replica in health.replicas}) == 3
    assert health.is_live
    assert health.is_ready


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_has_the_name_of_its_stage(workers):
    titles = [Path(f"/proc/{replica.pid}/cmdline").read_text() for replica in workers.health.replicas]
    assert ["worker levels.0" in title for title in titles] == [False, True, False]


def test_variables_are_for_processes(start):
    with pytest.raises(BadSetting, match="for models in processes of their own") as told:
        start(stage_1_env={"TOKEN": "xyzzy"})
    assert "xyzzy" not in told.value.message


def test_a_stage_whose_worker_is_killed_makes_its_part_again(engine, workers):
    names = ("words", "levels", "scene")
    values: Any = {"extra_args": {"num_words": 12, **{name: {"step_seconds": 0.05} for name in names}}}
    expected: Any = submitted(engine, **values).result()
    heard = submitted(workers, **values)
    # The one in the middle both takes parts and makes some.
    _until(lambda: sum(event.stage == "levels" for event in heard.steps) >= 3)
    pid = workers.health.replicas[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    result: Any = heard._last.get(timeout=60)
    assert np.array_equal(result.frames, expected.frames), result
    assert workers.health.replicas[1].restarts == 1
    assert 'omnireel_worker_restarts_total{stage="levels"} 1.0' in workers.metrics.text()


@pytest.fixture(scope="module")
def rewriting(tmp_path_factory):
    folder = write_language_model(tmp_path_factory.mktemp("lm") / "tiny")
    path = folder.parent / "deploy.yaml"
    path.write_text(
        f"pipeline: prompt_rewrite\nmodel: mini-h3\ndevice: cpu\nstages:\n- {{name: rewrite, model: {folder}}}\n"
    )
    made = make_engine(resolve({"deploy_config": Path(path)}, {}, topology=topology_of))
    made.start()
    yield made
    made.close()


def test_a_language_model_rewrites_the_prompt_of_h3(rewriting):
    heard = Heard()
    sampling = DiffusionSamplingParams(
        num_frames=96, num_inference_steps=2, seed=5, height=64, width=64, extra_args={"rewrite": {"max_new_tokens": 9}}
    )
    rewriting.submit(GenerationRequest(prompt="a red ball", sampling=sampling), heard)
    result: Any = heard._last.get(timeout=100)
    text = result.outputs["rewrite"].text
    assert text
    assert text != "a red ball"
    assert result.workload.prompt == result.recipe.prompt == text
    assert result.recipe.model == "mini-h3"
    assert [event.stage for event in heard.steps] == ["rewrite"] * 9 + ["generate"]
    # H3 alone makes the same clip of these words.
    alone = rewriting._main.engine
    plain = DiffusionSamplingParams(num_frames=96, num_inference_steps=2, seed=5, height=64, width=64)
    again = Heard()
    alone.submit(GenerationRequest(prompt=text, sampling=plain), again)
    made: Any = again._last.get(timeout=100)
    assert np.array_equal(made.frames, result.frames)


def _until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


def test_a_listener_may_cancel_what_another_stage_has_in_line(start):
    """Each stage's end would be told to a listener that has not returned from a step of another one."""
    engine = start(async_chunk=True)
    slow = {"num_words": 6, "words": {"step_seconds": 0.05}, "levels": {"step_seconds": 0.3}}
    first = submitted(engine, extra_args=slow)
    heard = Heard()

    def listen(event):
        heard(event)
        if len(heard.steps) == 3:
            # Its second stage waits for that of the first request.
            heard.ticket.cancel()

    heard.ticket = engine.submit(asked(extra_args=slow), listen)
    assert isinstance(heard.error(), Cancelled)
    assert first.result().frames is not None
    assert len(heard.finals) == 1
    assert submitted(engine).result().frames is not None


def test_a_listener_may_not_close_a_pipeline_either(start):
    engine, heard = start(), Heard()
    problems: list[str] = []

    def listen(event):
        heard(event)
        try:
            engine.close()
        except EngineError as error:
            problems.append(error.message)

    engine.submit(asked(), listen)
    heard.result()
    assert set(problems) == {"a listener cannot close the engine"}
    assert engine.is_alive


def test_the_first_stage_that_fails_to_load_ends_those_that_still_do(monkeypatch):
    """Here the last one fails at once, while the workers of the others have hardly begun."""
    engine = engine_of(stage_0_distributed_executor_backend="mp", stage_1_distributed_executor_backend="mp")
    monkeypatch.setattr("omnireel.engine.child._START", "import time; time.sleep(60)")

    def load(context):
        raise MemoryError

    monkeypatch.setattr("omnireel.models.toy_stages.pipeline.ToyScene.build", load)
    begun = time.monotonic()
    with pytest.raises(OutOfMemory):
        engine.start()
    assert time.monotonic() - begun < 30
    engine.close()


def test_a_full_pipeline_tells_the_time_of_its_slowest_stage(monkeypatch, start):
    engine = start(max_queue=1)
    for stage, seconds in zip(engine._stages, (1.0, 70.0, 2.0), strict=True):
        line = stage.engine._scheduler
        monkeypatch.setattr(line, "retry_after", lambda seconds=seconds: seconds)
    heard = [submitted(engine, extra_args={"words": {"step_seconds": 0.2}}) for _ in range(4)]
    with pytest.raises(QueueFull) as caught:
        submitted(engine)
    assert caught.value.details["retry_after_seconds"] == 70
    for one in heard:
        one.ticket.cancel()


def test_results_that_do_not_go_together_end_the_request_and_not_the_pipeline(start, monkeypatch):
    engine = start()

    def broken(self):
        raise KeyError("levels")

    monkeypatch.setattr("omnireel.engine.journey.Journey._whole", broken)
    assert submitted(engine).error().details["bug"]
    monkeypatch.undo()
    assert submitted(engine).result().frames is not None
