"""The Python surface: what a call means, how its requests end, and that giving up reaches the engine."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.engines import Heard, HeldToy, request
from tests.support.processes import threads_left

from omnireel.api import AsyncOmni, Omni, requests_of
from omnireel.engine.orchestrator import Engine
from omnireel.engine.result import GenerationResult
from omnireel.errors import BadSetting, Cancelled, EngineError, InvalidRequest, QueueFull, UnknownModel
from omnireel.media.recipe import read_recipe
from omnireel.models.toy.pipeline import ToyPipeline
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaInput, MediaKind, OutputSpec, StepEvent

SMALL = DiffusionSamplingParams(height=16, width=16, num_frames=3, seed=1)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not threads_left()


@pytest.fixture
def held(monkeypatch) -> Iterator[HeldToy]:
    toy = HeldToy()
    monkeypatch.setattr(ToyPipeline, "build", lambda context: toy)
    yield toy
    toy.free()


@pytest.fixture
def ends(monkeypatch) -> queue.SimpleQueue[object]:
    """The last event of every request, whoever else listens."""
    seen: queue.SimpleQueue[object] = queue.SimpleQueue()
    before = Engine.submit

    def submit(self, asked, on_event):
        def listen(event):
            on_event(event)
            if not isinstance(event, StepEvent):
                seen.put(event)

        return before(self, asked, listen)

    monkeypatch.setattr(Engine, "submit", submit)
    return seen


@pytest.fixture
def omni() -> Iterator[Omni]:
    with Omni("toy") as made:
        yield made


def test_a_text_takes_the_other_arguments():
    (one,) = requests_of("a kite", SMALL, output="kite.mp4", timeout_seconds=5)
    assert (one.prompt, one.sampling, one.output, one.timeout_seconds) == (
        "a kite",
        SMALL,
        OutputSpec(path=Path("kite.mp4")),
        5,
    )


def test_a_request_has_its_own():
    asked = request(timeout_seconds=3)
    assert requests_of(asked) == [asked]


def test_texts_and_requests_may_be_mixed():
    asked = request("b")
    assert [one.prompt for one in requests_of(["a", asked], SMALL)] == ["a", "b"]


@pytest.mark.parametrize("argument", [{"sampling_params": SMALL}, {"output": "a.mp4"}, {"timeout_seconds": 1.0}])
def test_arguments_that_no_text_takes_are_refused(argument):
    with pytest.raises(InvalidRequest, match=next(iter(argument))):
        requests_of([request()], **argument)


@pytest.mark.parametrize("prompts", [None, 5, {"a"}, ["a", None], [b"a"], b"a"])
def test_what_is_no_prompt_is_refused(prompts):
    with pytest.raises(InvalidRequest, match="prompt"):
        requests_of(prompts)


def test_sampling_of_another_kind_is_refused():
    with pytest.raises(InvalidRequest, match="sampling_params"):
        requests_of("a", {"seed": 1})  # type: ignore[arg-type]


def test_no_prompts_are_no_requests():
    assert requests_of([]) == []


def test_several_outputs_have_seeds_and_files_in_order():
    asked = replace(SMALL, num_outputs_per_prompt=3)
    made = requests_of("a", asked, output=Path("out/kite.mp4"))
    assert [one.sampling.seed for one in made] == [1, 2, 3]
    assert [str(one.output.path) for one in made] == ["out/kite.mp4", "out/kite-2.mp4", "out/kite-3.mp4"]
    assert [one.sampling.num_outputs_per_prompt for one in made] == [None] * 3
    assert len({one.request_id for one in made}) == 3


def test_several_outputs_without_a_seed_share_a_drawn_one():
    first, second = (one.sampling.seed for one in requests_of("a", DiffusionSamplingParams(num_outputs_per_prompt=2)))
    assert first is not None
    assert second == first + 1


def test_no_two_clips_of_a_call_go_to_one_file():
    made = requests_of([request("a", output=OutputSpec(path=Path("k-2.mp4"))), "b", "c"], SMALL, output="k.mp4")
    assert [str(one.output.path) for one in made] == ["k-2.mp4", "k.mp4", "k-3.mp4"]


def test_a_request_given_twice_is_two_requests():
    asked = request()
    first, second = requests_of([asked, asked])
    assert first.request_id == asked.request_id != second.request_id


@pytest.mark.parametrize("count", [0, 11, 1.5, True])
def test_a_count_of_outputs_that_cannot_be_is_refused(count):
    with pytest.raises(InvalidRequest, match="num_outputs_per_prompt"):
        requests_of("a", DiffusionSamplingParams(num_outputs_per_prompt=count))


def test_results_come_in_order(omni):
    results = omni.generate(["a", "b", "c"], SMALL)
    assert [result.workload.prompt for result in results] == ["a", "b", "c"]
    assert omni.generate([]) == []


def test_steps_are_told_on_the_callers_thread(omni):
    seen: list[tuple[int, int]] = []
    omni.generate("a", SMALL, on_event=lambda event: seen.append((event.index, threading.get_ident())))
    assert seen == [(index, threading.get_ident()) for index in (1, 2, 3, 4)]


def test_files_are_written(omni, tmp_path):
    asked = replace(SMALL, num_outputs_per_prompt=2)
    results = omni.generate("a", asked, output=tmp_path / "a.mp4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-2.mp4", "a.mp4"]
    assert read_recipe(tmp_path / "a-2.mp4") == results[1].recipe
    assert results[1].seed == 2


def mixed():
    return [request("a"), request("b", extra_args={"fail": "oom"}), request("", num_frames=3), request("d")]


def test_the_first_failure_is_raised_when_all_have_ended(omni, tmp_path):
    last = replace(mixed()[3], output=OutputSpec(path=tmp_path / "d.mp4"))
    with pytest.raises(EngineError, match="out of memory"):
        omni.generate([*mixed()[:3], last])
    assert (tmp_path / "d.mp4").exists()


def test_errors_come_in_place_of_results_when_wanted(omni):
    ended = omni.generate(mixed(), return_errors=True)
    assert [getattr(end, "code", "result") for end in ended] == ["result", "out_of_memory", "invalid_request", "result"]


def test_more_requests_than_the_line_takes_all_run():
    with Omni("toy", max_queue=1) as small:
        assert len(small.generate([f"{k}" for k in range(8)], SMALL)) == 8


def test_a_call_waits_for_its_own_place_when_others_fill_the_line(held, monkeypatch):
    tried: queue.SimpleQueue[str] = queue.SimpleQueue()
    before = Engine.submit

    def submit(self, asked, on_event):
        try:
            return before(self, asked, on_event)
        finally:
            tried.put(asked.prompt)

    monkeypatch.setattr(Engine, "submit", submit)
    with Omni("toy", max_queue=1) as omni:
        omni._engine.submit(request("other"), Heard())
        ended: list[list[GenerationResult]] = []
        caller = threading.Thread(target=lambda: ended.append(omni.generate(["a", "b"], SMALL)))
        caller.start()
        assert [tried.get(timeout=5) for _ in range(3)] == ["other", "a", "b"]
        held.free()
        caller.join(10)
    assert [result.workload.prompt for result in ended[0]] == ["a", "b"]
    assert tried.get(timeout=5) == "b"


def test_a_line_that_others_fill_refuses_a_call(held):
    with Omni("toy", max_queue=1) as omni:
        for _ in range(2):
            omni._engine.submit(request("other"), Heard())
        with pytest.raises(QueueFull):
            omni.generate("a", SMALL)
        held.free()


def test_what_a_listener_raises_cancels_everything(held, ends):
    def listen(event: StepEvent) -> None:
        raise KeyError("mine")

    held.let()
    with Omni("toy") as omni:
        with pytest.raises(KeyError, match="mine"):
            omni.generate(["a", "b", "c"], SMALL, on_event=listen)
        held.free()
        assert [type(ends.get(timeout=5)) for _ in range(2)] == [Cancelled, Cancelled]


def test_ctrl_c_cancels_what_runs_and_waits_and_goes_on(held, ends):
    def interrupt():
        held.until_step()
        os.kill(os.getpid(), signal.SIGINT)

    with Omni("toy") as omni:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            omni.generate(["a", "b", "c"], SMALL)
        assert isinstance(ends.get(timeout=5), Cancelled)
        assert ends.empty()
        held.let()
        assert isinstance(ends.get(timeout=5), Cancelled)
        held.free()
        assert omni.generate("d", SMALL)[0].frames is not None


def test_several_threads_may_share_one(omni):
    results: list[GenerationResult] = []
    threads = [threading.Thread(target=lambda: results.extend(omni.generate("a", SMALL))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len({result.request_id for result in results}) == 4


def test_after_closing_a_call_is_refused():
    omni = Omni("toy")
    omni.close()
    omni.close()
    with pytest.raises(EngineError, match="closed"):
        omni.generate("a", SMALL)


@pytest.mark.parametrize(
    ("arguments", "flags", "error"),
    [(("toi",), {}, UnknownModel), (("toy",), {"colour": 1}, BadSetting), (("toy",), {"max_queue": 0}, BadSetting)],
)
@pytest.mark.parametrize("kind", [Omni, AsyncOmni])
def test_what_cannot_be_set_is_told(kind, arguments, flags, error):
    with pytest.raises(error):
        kind(*arguments, **flags)


def test_without_a_model_the_environment_names_it(monkeypatch):
    monkeypatch.setenv("OMNIREEL_MODEL", "toy")
    with Omni() as omni:
        assert omni._engine.checkpoint.name == "toy"


async def collected(omni, prompt="a kite", sampling=SMALL, **values):
    return [event async for event in omni.generate(prompt, sampling, **values)]


def test_steps_come_and_then_the_result():
    async def main():
        async with AsyncOmni("toy") as omni:
            return await collected(omni)

    events = asyncio.run(main())
    assert [event.index for event in events[:-1]] == [1, 2, 3, 4]
    assert isinstance(events[-1], GenerationResult)


def test_the_first_call_loads_the_model():
    async def main():
        omni = AsyncOmni("toy")
        before = omni._engine.is_started
        ended = await asyncio.gather(*(collected(omni) for _ in range(3)))
        await omni.close()
        return before, len(ended)

    assert asyncio.run(main()) == (False, 3)


def test_a_failure_is_raised_and_the_next_call_works():
    async def main():
        async with AsyncOmni("toy") as omni:
            with pytest.raises(EngineError, match="out of memory"):
                await collected(omni, request(extra_args={"fail": "oom"}), None)
            return await collected(omni)

    assert isinstance(asyncio.run(main())[-1], GenerationResult)


def test_calls_are_served_in_order_of_arrival(held):
    async def main():
        async with AsyncOmni("toy") as omni:
            tasks = []
            for name in ("a", "b", "c"):
                tasks.append(asyncio.create_task(collected(omni, name, replace(SMALL, num_inference_steps=2))))
                await asyncio.sleep(0)
            held.let(3)
            order = [await asyncio.to_thread(held.until_step) for _ in tasks]
            await asyncio.gather(*tasks)
            return order

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_several_clips_of_a_request_come_one_after_another():
    async def main():
        async with AsyncOmni("toy") as omni:
            return await collected(omni, "a", replace(SMALL, num_outputs_per_prompt=3))

    events = asyncio.run(main())
    assert [event.seed for event in events if isinstance(event, GenerationResult)] == [1, 2, 3]
    assert len(events) == 3 * 5


@pytest.mark.parametrize("way", ["aclose", "cancel"])
def test_who_stops_listening_gives_the_request_up(held, ends, way):
    async def listen(omni, begun):
        stream = omni.generate("a", SMALL)
        async for _ in stream:
            begun.set()
            if way == "aclose":
                await stream.aclose()
                return

    async def main():
        async with AsyncOmni("toy") as omni:
            begun = asyncio.Event()
            task = asyncio.create_task(listen(omni, begun))
            held.let()
            await begun.wait()
            if way == "cancel":
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            held.let()
            return await asyncio.to_thread(ends.get, timeout=5)

    assert isinstance(asyncio.run(main()), Cancelled)


def test_aborting_by_id_ends_the_call_and_may_be_repeated(held):
    async def main():
        async with AsyncOmni("toy") as omni:
            task = asyncio.create_task(collected(omni, request(request_id="req_1"), None))
            await asyncio.to_thread(held.until_step)
            omni.abort("req_1")
            omni.abort("req_1")
            omni.abort("req_unknown")
            held.free()
            with pytest.raises(Cancelled):
                await task
            omni.abort("req_1")

    asyncio.run(main())


def test_one_object_serves_one_event_loop_after_another():
    omni = AsyncOmni("toy")

    async def main():
        return await collected(omni)

    kinds = [type(asyncio.run(main())[-1]) for _ in range(2)]
    asyncio.run(omni.close())
    assert kinds == [GenerationResult] * 2


def test_a_loop_that_ended_early_does_not_disturb_the_engine(held):
    omni = AsyncOmni("toy")

    async def leave():
        task = asyncio.create_task(collected(omni))
        await asyncio.to_thread(held.until_step)
        task.cancel()

    async def main():
        return await collected(omni)

    asyncio.run(leave())
    held.free()
    assert isinstance(asyncio.run(main())[-1], GenerationResult)
    asyncio.run(omni.close())


def test_closing_ends_calls_under_way(held):
    async def main():
        omni = AsyncOmni("toy")
        await omni.start()
        task = asyncio.create_task(collected(omni))
        await asyncio.to_thread(held.until_step)
        closing = asyncio.create_task(omni.close())
        held.free()
        with pytest.raises(Cancelled):
            await task
        await closing
        with pytest.raises(EngineError, match="closed"):
            await collected(omni)

    asyncio.run(main())


@pytest.mark.parametrize("output", [5, OutputSpec(path="a.mp4")])  # type: ignore[arg-type]
def test_an_output_of_another_type_is_refused(output):
    with pytest.raises(InvalidRequest, match="output"):
        requests_of("a kite", output=output)


@pytest.fixture
def submitters(monkeypatch):
    """Makes media take a while, and gives the threads that submitted; the toy itself gets none of the media."""
    threads = []
    submit = Engine.submit

    def slowly(engine, asked, listener):
        threads.append(threading.get_ident())
        time.sleep(0.2)
        return submit(engine, replace(asked, media=()), listener)

    monkeypatch.setattr(Engine, "submit", slowly)
    return threads


@pytest.fixture
def slow_media():
    picture = MediaInput(kind=MediaKind.IMAGE, role="first_frame")
    slow = DiffusionSamplingParams(extra_args={"step_seconds": 0.1}, num_outputs_per_prompt=3)
    return GenerationRequest(prompt="a kite", sampling=slow, media=(picture,), request_id="early")


def test_media_are_not_decoded_on_the_thread_of_the_event_loop(submitters, slow_media):
    async def main():
        async with AsyncOmni("toy") as omni:
            return await collected(omni, slow_media, None)

    events = asyncio.run(main())
    assert len([event for event in events if isinstance(event, GenerationResult)]) == 3
    assert len(submitters) == 3
    assert threading.get_ident() not in submitters


def test_a_task_that_is_cancelled_while_media_are_decoded_leaves_nothing_running(submitters, slow_media, ends):
    async def main():
        async with AsyncOmni("toy") as omni:
            task = asyncio.create_task(collected(omni, slow_media, None))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.wait([task])
            return await asyncio.to_thread(ends.get, timeout=5)

    assert isinstance(asyncio.run(main()), Cancelled)
    assert ends.empty()


def test_figures_are_to_be_had_without_a_server(omni):
    omni.generate("a kite", SMALL)
    assert 'omnireel_requests_total{status="ok",task="t2va"} 1.0' in omni.metrics()


@pytest.mark.parametrize("async_chunk", [False, True])
def test_a_pipeline_of_stages_is_used_as_a_model_is(async_chunk):
    stages = []
    with Omni(pipeline="toy_story", device="cpu", async_chunk=async_chunk) as omni:
        results = omni.generate(
            ["a kite", "a kite", "a ball"], SMALL, on_event=lambda event: stages.append(event.stage)
        )
        assert 'omnireel_requests_total{status="ok",task="t2va"} 3.0' in omni.metrics()
    same, again, other = (result.frames for result in results)
    assert same is not None
    assert (same == again).all()
    assert (same != other).any()
    assert {stage: stages.count(stage) for stage in set(stages)} == {"words": 18, "levels": 18, "scene": 18}


def test_a_pipeline_of_stages_can_be_awaited():
    async def main():
        async with AsyncOmni(pipeline="toy_story", device="cpu") as omni:
            return [event async for event in omni.generate("a kite", SMALL)]

    *steps, result = asyncio.run(main())
    assert len(steps) == 18
    assert isinstance(result, GenerationResult)
    assert {"words.denoise", "denoise"} <= result.stage_durations.keys()
