"""The runner drives the steps; whatever ends a request ends it between two of them and with a typed error."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
from tests.support.engines import Heard, TakingFeed, ticket
from tests.support.ranks import together

from omnireel.engine import runner
from omnireel.engine.connectors.channel import Channel
from omnireel.engine.connectors.memory import MemoryConnector
from omnireel.engine.runner import Runner
from omnireel.engine.ticket import Ticket
from omnireel.errors import (
    Cancelled,
    ConnectorLost,
    DeadlineExceeded,
    EngineError,
    InvalidRequest,
    OmniReelError,
    OutOfMemory,
    RankLost,
)
from omnireel.models.discover import admit, find_checkpoint
from omnireel.models.toy.pipeline import ToyPipeline
from omnireel.models.toy_stages.handover import chunk
from omnireel.models.toy_stages.pipeline import ToyLevels, ToyWords
from omnireel.platforms import find_platform
from omnireel.platforms.cpu import Cpu
from omnireel.request import DiffusionSamplingParams, GenerationRequest, Handover, OutputSpec

CPU = find_platform("cpu")


def nothing() -> None:
    pass


def run(one, pipeline=None, platform=CPU, between=nothing):
    """What one request came to; raised where it is an error."""
    feed = TakingFeed(between)
    Runner(pipeline or ToyPipeline(), platform).run([one], feed)
    return feed.outcome(one)


def with_previews(one, every):
    one.workload = replace(one.workload, output=OutputSpec(preview_every=every))
    return one


def test_each_step_is_told():
    heard = Heard()
    run(ticket(heard, extra_args={"step_seconds": 0.002}))
    assert [(event.index, event.total) for event in heard.steps] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert min(event.seconds for event in heard.steps) >= 0.002


def test_stages_and_peak_memory_are_measured():
    report = run(ticket(extra_args={"step_seconds": 0.001}))
    assert list(report.durations) == ["encode", "prepare", "denoise", "decode"]
    assert report.durations["denoise"] >= 0.004
    assert report.peak_memory_mb > 1


def test_every_pause_is_told():
    pauses = []
    run(ticket(), between=lambda: pauses.append(1))
    assert len(pauses) == 4 + 3


@pytest.mark.parametrize("at", [1, 2, 3])
def test_cancelling_acts_before_the_next_step(at):
    seen = []

    def listen(event):
        seen.append(event.index)
        if event.index == at:
            one.cancel()

    one = ticket(listen)
    with pytest.raises(Cancelled, match=f"before step {at + 1} of 4"):
        run(one)
    assert seen == list(range(1, at + 1))


@pytest.mark.parametrize(
    ("stage", "following"), [("encode", "prepare"), ("prepare", "denoise"), ("step", "before step 2")]
)
def test_cancelling_acts_before_the_next_stage(monkeypatch, stage, following):
    one = ticket()
    before = getattr(ToyPipeline, stage)

    def cancel_first(*arguments):
        one.cancel()
        return before(*arguments)

    monkeypatch.setattr(ToyPipeline, stage, cancel_first)
    with pytest.raises(Cancelled, match=following):
        run(one)


def test_a_request_that_was_cancelled_before_is_never_begun(monkeypatch):
    monkeypatch.setattr(ToyPipeline, "encode", lambda *arguments: pytest.fail("it was begun"))
    one = ticket()
    one.cancel()
    with pytest.raises(Cancelled, match="before encode"):
        run(one)


def test_time_that_runs_out_acts_before_the_next_step():
    with pytest.raises(DeadlineExceeded, match=r"0\.01 s \(before step 2"):
        run(ticket(timeout_seconds=0.01, extra_args={"step_seconds": 0.02}))


def test_previews_come_as_often_as_was_asked():
    heard = Heard()
    run(with_previews(ticket(heard), 2))
    assert [event.preview is not None for event in heard.steps] == [False, True, False, True]
    preview = heard.steps[1].preview
    assert preview is not None
    assert preview.shape == (16, 16, 3)


@pytest.mark.parametrize(("error", "level"), [(MemoryError(), logging.WARNING), (ValueError("x"), logging.ERROR)])
def test_a_preview_that_fails_costs_the_picture_only(monkeypatch, caplog, error, level):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(ToyPipeline, "preview", fail)
    heard = Heard()
    report = run(with_previews(ticket(heard), 3))
    assert report.output.frames is not None
    assert [event.preview for event in heard.steps] == [None] * 4
    assert [record.levelno for record in caplog.records] == [level]


@pytest.mark.parametrize("stage", ["encode", "prepare", "decode"])
def test_a_bug_is_told_as_one_without_its_words(caplog, stage):
    one = ticket(extra_args={"fail": stage})
    with pytest.raises(EngineError, match=stage) as raised:
        run(one)
    assert raised.value.details == {"request_id": one.request_id, "stage": stage, "bug": True}
    assert "bug" in raised.value.hint
    assert "was told to fail" not in raised.value.message
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert one.request_id in record.getMessage()
    assert record.exc_info is not None
    assert "was told to fail" in str(record.exc_info[1])


def test_a_bug_in_a_step_is_of_the_denoise_stage():
    heard = Heard()
    with pytest.raises(EngineError, match="denoise"):
        run(ticket(heard, extra_args={"fail": "step:3"}))
    assert len(heard.steps) == 2


@pytest.mark.parametrize("fail", [None, "step:3"])
def test_progress_is_told_with_each_step_and_gone_after_the_loop(monkeypatch, fail):
    states = []
    prepare = ToyPipeline.prepare

    def remembered(*arguments):
        states.append(prepare(*arguments))
        return states[-1]

    monkeypatch.setattr(ToyPipeline, "prepare", remembered)
    heard = Heard()
    with contextlib.suppress(EngineError):
        run(ticket(heard, extra_args={"fail": fail}))
    told = [event.progress for event in heard.steps if event.progress is not None]
    assert told[0] == 1.0
    assert all(before > after for before, after in itertools.pairwise(told))
    assert states[0].progress is None


def test_what_the_caller_did_wrong_stays_his_error():
    with pytest.raises(InvalidRequest):
        run(ticket(extra_args={"fail": "client"}))


def test_memory_that_ran_out_is_told_with_its_stage():
    with pytest.raises(OutOfMemory) as raised:
        run(ticket(extra_args={"fail": "oom"}))
    assert raised.value.details["where"] == "denoise"


def test_a_device_that_fails_outside_of_a_stage_fails_the_request_only():
    class Broken(Cpu):
        def reset_peak_memory(self, index=0):
            raise RuntimeError("a sticky device error")

    with pytest.raises(EngineError, match="start"):
        run(ticket(), platform=Broken())


def test_after_memory_ran_out_nothing_of_the_request_is_alive_when_memory_is_given_back(monkeypatch):
    states: list[weakref.ref[object]] = []
    alive_at_release: list[bool] = []

    class Remembered:
        pass

    class Watching(Cpu):
        def release_memory(self, index=0):
            alive_at_release.append(states[0]() is not None)

    def step(self, state):
        block = Remembered()
        states.append(weakref.ref(block))
        raise MemoryError

    monkeypatch.setattr(ToyPipeline, "step", step)
    gc.disable()
    try:
        with pytest.raises(OutOfMemory) as raised:
            run(ticket(), platform=Watching())
    finally:
        gc.enable()
    assert alive_at_release == [False]
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)


def test_an_error_keeps_no_tensor_of_its_request_alive(monkeypatch, caplog):
    # pytest keeps log records, and those the traceback.
    caplog.set_level(logging.CRITICAL, logger="omnireel")
    states: list[weakref.ref[object]] = []

    class Remembered:
        pass

    def decode(self, state):
        block = Remembered()
        states.append(weakref.ref(block))
        raise ValueError

    monkeypatch.setattr(ToyPipeline, "decode", decode)
    with pytest.raises(EngineError):
        run(ticket())
    assert states[0]() is None


def test_a_pipeline_that_does_not_count_its_steps_is_a_bug(monkeypatch):
    monkeypatch.setattr(ToyPipeline, "step", lambda self, state: state)
    with pytest.raises(EngineError, match="AssertionError"):
        run(ticket())


def test_prompts_are_not_logged_above_debug(caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(EngineError):
        run(ticket(prompt="a secret kite", extra_args={"fail": "decode"}))
    assert "secret" not in caplog.text


def batch_of(*tickets, later=(), max_batch=8, pipeline=None):
    """What several requests came to that were begun together."""
    feed = TakingFeed(later=later)
    Runner(pipeline or ToyPipeline(), CPU, max_batch=max_batch).run(tickets, feed)
    return feed


def frames_of(seed, **values):
    return run(ticket(seed=seed, **values)).output.frames


def test_a_batch_gives_each_request_the_frames_that_it_gets_alone():
    tickets = [ticket(seed=seed, num_inference_steps=points) for seed, points in ((1, 5), (2, 9), (3, 3))]
    feed = batch_of(*tickets)
    for one, (seed, points) in zip(tickets, ((1, 5), (2, 9), (3, 3)), strict=True):
        alone = frames_of(seed, num_inference_steps=points)
        assert (feed.outcome(one).output.frames == alone).all()


def test_one_that_joins_between_two_steps_gets_the_frames_that_it_gets_alone():
    heard = [Heard(), Heard()]
    first, late = ticket(heard[0], seed=1), ticket(heard[1], seed=2)
    feed = batch_of(first, later=[late], max_batch=2)
    assert (feed.outcome(late).output.frames == frames_of(2)).all()
    assert (feed.outcome(first).output.frames == frames_of(1)).all()
    assert [[event.index for event in one.steps] for one in heard] == [[1, 2, 3, 4]] * 2
    # Asked only while there is room, which there was again when the first had ended.
    assert set(feed.rooms) == {1}


@pytest.mark.parametrize("failure", ["encode", "prepare", "step:2", "decode", "oom"])
def test_one_that_fails_in_a_batch_fails_alone(failure):
    good, bad, other = ticket(seed=1), ticket(seed=2, extra_args={"fail": failure}), ticket(seed=3)
    feed = batch_of(good, bad, other)
    assert isinstance(feed.outcomes[bad.request_id], EngineError)
    assert (feed.outcome(good).output.frames == frames_of(1)).all()
    assert (feed.outcome(other).output.frames == frames_of(3)).all()


@pytest.mark.parametrize("step", range(1, 21))
def test_cancelling_after_any_step_ends_before_the_next_and_leaves_the_others_alone(step):
    one: list[Ticket] = []
    heard = Heard()

    def listen(event):
        heard(event)
        if len(heard.steps) == step:
            one[0].cancel()

    one.append(ticket(listen, num_inference_steps=21))
    other = ticket(seed=3, num_inference_steps=21)
    feed = batch_of(one[0], other)
    assert isinstance(feed.outcomes[one[0].request_id], Cancelled)
    assert len(heard.steps) == step
    assert (feed.outcome(other).output.frames == frames_of(3, num_inference_steps=21)).all()


def test_cancelling_while_it_is_decoded_ends_it():
    class Slow(ToyPipeline):
        def decode(self, state):
            one.cancel()
            return super().decode(state)

    one = ticket()
    with pytest.raises(Cancelled, match="while it was decoded"):
        run(one, Slow())


def test_memory_that_ran_out_tells_what_has_fitted():
    runner, feed = Runner(ToyPipeline(), CPU), TakingFeed()
    small, large, bad = ticket(), ticket(num_frames=4), ticket(extra_args={"fail": "oom"})
    for one in (large, small, bad):
        runner.run([one], feed)
    error = feed.outcomes[bad.request_id]
    assert isinstance(error, OutOfMemory)
    assert "16x16 with 4 frames" in error.hint


def fed(channel, **values):
    """A ticket of the second toy of a pipeline, whose input comes through a channel."""
    sampling = DiffusionSamplingParams(height=16, width=16, num_frames=3, seed=1)
    asked = GenerationRequest(prompt="a kite", sampling=sampling, inbox=MemoryConnector().publish(channel))
    return Ticket(admit(asked, find_checkpoint("toy-levels", architecture="ToyLevels")), Heard(), **values)


def words(*values, is_last=False):
    return Handover(tensors={"words": np.array(values)}, is_last=is_last)


def test_parts_that_come_while_it_runs_are_taken(monkeypatch):
    monkeypatch.setattr(runner, "SIGN_SECONDS", 0.0)
    channel = Channel()
    channel.send(words(0.25, 0.5))
    threading.Timer(0.15, channel.send, [words(0.75, is_last=True)]).start()
    one = fed(channel)
    signs: list[str] = []
    one.on_stage = signs.append
    report = run(one, ToyLevels())
    assert np.allclose(report.output.latents["levels"], [[0.5, 0.75, 0.0], [0.75, 0.375, 0.5], [0.125, 0.6875, 0.5]])
    # Who waits shows that it is alive.
    assert signs.count("wait") >= 2


def test_a_pipeline_that_takes_no_parts_gets_all_at_once():
    class Whole(ToyPipeline):
        def prepare(self, workload, conditioning):
            seen.append((workload.tensors["words"].tolist(), workload.inbox))
            return super().prepare(workload, conditioning)

    channel = Channel()
    seen: list[object] = []
    channel.send(words(0.5))
    channel.send(Handover(is_last=True))
    one = ticket()
    one.workload = replace(one.workload, inbox=MemoryConnector().publish(channel))
    run(one, Whole())
    assert seen == [([0.5], None)]


def test_a_wait_for_a_part_ends_with_its_time_and_with_the_other_side():
    with pytest.raises(DeadlineExceeded, match="waited for the stage before"):
        run(fed(Channel(), timeout_seconds=0.2), ToyLevels())
    channel = Channel()
    channel.close()
    with pytest.raises(ConnectorLost):
        run(fed(channel), ToyLevels())


def test_what_is_handed_on_goes_with_the_steps():
    heard = Heard()
    one = Ticket(
        admit(GenerationRequest(prompt="a kite"), find_checkpoint("toy-words", architecture="ToyWords")), heard
    )
    feed = TakingFeed(nothing)
    Runner(ToyWords(), CPU, chunk_processor=chunk).run([one], feed)
    assert [event.chunk is None for event in heard.steps] == [True, False] * 3
    chunks = [event.chunk for event in heard.steps if event.chunk is not None]
    whole = np.concatenate([part["words"] for part in chunks])
    latents = feed.outcome(one).output.latents
    assert latents is not None
    assert np.array_equal(whole, latents["words"])


class OddInbox:
    """One whose library says no in its own words."""

    def open(self):
        raise RuntimeError("no such transport")


@pytest.mark.parametrize("kind", [ToyLevels, ToyWords])
def test_a_connector_that_breaks_in_words_of_its_own_fails_its_request_alone(kind):
    one, other, feed = ticket(), ticket(), TakingFeed()
    one.workload = replace(one.workload, inbox=OddInbox())
    Runner(ToyPipeline(), CPU).run([one, other], feed)
    assert isinstance(feed.outcomes[one.request_id], EngineError)
    assert feed.outcome(other)


def test_what_fitted_is_remembered_without_what_it_was_handed():
    one = ticket()
    one.workload = replace(one.workload, tensors={"a": np.zeros(8)})
    driver = Runner(ToyPipeline(), CPU)
    driver.run([one], TakingFeed())
    assert driver._largest is not None
    assert not driver._largest.tensors


class SharedToy(ToyPipeline):
    """Decodes together: three parts with a pause before each; `strike` happens before one of them."""

    def __init__(self, ranks, strike=nothing):
        super().__init__(ranks=ranks)
        self.strike, self.parts = strike, 0

    def decode(self, state):
        for part in range(3):
            if part == 1:
                self.strike()
            state.pause()
            self.parts += 1
        return super().decode(state)


def ends_on(size, work, *, is_decode_shared=False, **values):
    """What a request came to on each rank, and whether that rank left; `work` makes a pipeline of ranks and ticket."""

    def one(ranks):
        mine, feed = ticket(**values), TakingFeed()
        pipeline = work(ranks, mine)
        made = Runner(pipeline, CPU, ranks=ranks, is_decode_shared=is_decode_shared)
        made.run([mine], feed)
        return feed.outcomes[mine.request_id], ranks.has_left, pipeline

    return together(size, one)


def test_ranks_run_in_step_and_the_first_decodes():
    whole = run(ticket())
    (first, left, _), *others = ends_on(3, lambda ranks, _: ToyPipeline(ranks=ranks))
    assert not left
    assert np.array_equal(first.output.frames, whole.output.frames)
    assert all(outcome.output.frames is None and not has_left for outcome, has_left, _ in others)


@pytest.mark.parametrize("fail", ["client@1", "encode@1", "prepare@0", "step:2@1", "step:1@0", "oom@2"])
def test_a_rank_that_fails_in_the_loop_leaves_and_one_before_it_only_says_so(fail):
    found = ends_on(3, lambda ranks, _: ToyPipeline(ranks=ranks), extra_args={"fail": fail})
    struck, is_in_loop = int(fail[-1]), fail.startswith(("step", "oom"))
    assert [has_left for _, has_left, _ in found] == [is_in_loop] * 3
    for rank, (outcome, _, _) in enumerate(found):
        assert isinstance(outcome, OmniReelError)
        assert isinstance(outcome, RankLost) == (rank != struck), outcome


def test_what_every_rank_refuses_each_tells_and_none_leaves():
    found = ends_on(2, lambda ranks, _: ToyPipeline(ranks=ranks), extra_args={"fail": "client"})
    assert [(type(outcome), has_left) for outcome, has_left, _ in found] == [(InvalidRequest, False)] * 2


class CancellingToy(ToyPipeline):
    """Is cancelled in its second step."""

    def __init__(self, ranks, cancel):
        super().__init__(ranks=ranks)
        self.cancel, self.steps = cancel, 0

    def step(self, state):
        self.steps += 1
        if self.steps == 2:
            self.cancel()
        return super().step(state)


def test_a_cancel_that_one_rank_heard_ends_all_at_the_same_step_and_none_leaves():
    found = ends_on(2, lambda ranks, mine: CancellingToy(ranks, mine.cancel if ranks.rank else nothing))
    for outcome, has_left, pipeline in found:
        assert isinstance(outcome, Cancelled)
        assert "before step 3 of 4" in outcome.message
        assert (has_left, pipeline.steps) == (False, 2)


def test_ranks_that_decode_together_agree_there_too():
    first, second = ends_on(2, lambda ranks, _: SharedToy(ranks), is_decode_shared=True)
    assert (first[2].parts, second[2].parts) == (3, 3)
    found = ends_on(
        2, lambda ranks, mine: SharedToy(ranks, mine.cancel if ranks.rank else nothing), is_decode_shared=True
    )
    for outcome, has_left, pipeline in found:
        assert isinstance(outcome, Cancelled)
        assert "while it was decoded" in outcome.message
        assert (has_left, pipeline.parts) == (False, 1)


@pytest.mark.parametrize("is_decode_shared", [False, True])
def test_a_first_rank_that_fails_in_decoding_leaves_only_where_others_decode_too(is_decode_shared):
    found = ends_on(
        2, lambda ranks, _: SharedToy(ranks), is_decode_shared=is_decode_shared, extra_args={"fail": "decode@0"}
    )
    assert type(found[0][0]) is EngineError
    assert found[0][1] == is_decode_shared
