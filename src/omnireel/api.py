"""The Python surface: `Omni` for programs that wait, `AsyncOmni` for those that await. Both are thin over one engine."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias, overload

from omnireel.config import resolve
from omnireel.engine.orchestrator import Engine
from omnireel.engine.result import GenerationResult
from omnireel.engine.staged import StagedEngine, make_engine
from omnireel.errors import InvalidRequest, OmniReelError, QueueFull
from omnireel.models import checks
from omnireel.models.discover import topology_of
from omnireel.observe.env import environment
from omnireel.request import DiffusionSamplingParams, GenerationRequest, OutputSpec, StepEvent, new_request_id

Prompt: TypeAlias = str | GenerationRequest
Output: TypeAlias = str | Path | OutputSpec
Event: TypeAlias = StepEvent | GenerationResult

MAX_OUTPUTS = 10
MAX_AT_ONCE = 2
"""Requests of one call that the engine has at a time: one runs while the file of the other is written."""


def requests_of(
    prompts: Prompt | Sequence[Prompt],
    sampling_params: DiffusionSamplingParams | None = None,
    *,
    output: Output | None = None,
    timeout_seconds: float | None = None,
) -> list[GenerationRequest]:
    """What a caller passed as plain requests, one for each clip.

    A text takes the other arguments; a GenerationRequest has its own. `num_outputs_per_prompt` = n becomes n requests with
    seeds seed, seed + 1, ... A file that several clips would be written to gets -2, -3, ... before the suffix from the
    second clip on; an id that comes again is replaced by a new one.

    Raises:
        InvalidRequest: something is of another type, num_outputs_per_prompt is out of range, or there are arguments for
            texts and no text.
    """
    given = [prompts] if isinstance(prompts, str | GenerationRequest) else prompts
    if not isinstance(given, Sequence):
        raise InvalidRequest("prompts", prompts, "it must be a text, a GenerationRequest, or a list of them")
    if sampling_params is not None and not isinstance(sampling_params, DiffusionSamplingParams):
        raise InvalidRequest("sampling_params", sampling_params, "it must be DiffusionSamplingParams(...)")
    if not any(isinstance(prompt, str) for prompt in given):
        _refuse_unused(sampling_params=sampling_params, output=output, timeout_seconds=timeout_seconds)
    if output is not None and not isinstance(output, str | Path | OutputSpec):
        raise InvalidRequest("output", output, "it must be a file name or OutputSpec(...)")
    for_texts = GenerationRequest(
        prompt="",
        sampling=sampling_params or DiffusionSamplingParams(),
        output=OutputSpec(path=Path(output)) if isinstance(output, str | Path) else output or OutputSpec(),
        timeout_seconds=timeout_seconds,
    )
    checks.request_types(for_texts)
    asked = (_one(prompt, for_texts) for prompt in given)
    return _told_apart(request for one in asked for request in _expanded(one))


def _one(prompt: object, for_texts: GenerationRequest) -> GenerationRequest:
    if isinstance(prompt, GenerationRequest):
        return checks.request_types(prompt)
    if not isinstance(prompt, str):
        raise InvalidRequest("prompt", prompt, "it must be a text or a GenerationRequest")
    return replace(for_texts, prompt=prompt, request_id=new_request_id())


def _refuse_unused(**values: object) -> None:
    for name, value in values.items():
        if value is not None:
            raise InvalidRequest(name, value, "it is for texts; a GenerationRequest has its own")


def _expanded(request: GenerationRequest) -> Iterator[GenerationRequest]:
    asked = request.sampling.num_outputs_per_prompt
    count = 1 if asked is None else checks.whole("num_outputs_per_prompt", asked, 1, MAX_OUTPUTS)
    single = replace(request, sampling=replace(request.sampling, num_outputs_per_prompt=None))
    if count == 1:
        yield single
        return
    seed = checks.seed_or_random(request.sampling.seed)
    for index in range(count):
        yield replace(single, sampling=replace(single.sampling, seed=seed + index))


def _told_apart(requests: Iterator[GenerationRequest]) -> list[GenerationRequest]:
    """No two with one id or one file."""
    found: list[GenerationRequest] = []
    paths: set[Path] = set()
    ids: set[str] = set()
    for request in requests:
        path = request.output.path
        if path is not None:
            path = next(name for name in _numbered(path) if name not in paths)
            paths.add(path)
        request_id = new_request_id() if request.request_id in ids else request.request_id
        ids.add(request_id)
        found.append(replace(request, request_id=request_id, output=replace(request.output, path=path)))
    return found


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    number = 1
    while True:
        number += 1
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


class _Call:
    """The requests of one call on their way through the engine, MAX_AT_ONCE of them at a time.

    For one thread at a time; only `cancel` may come meanwhile, for submitting takes as long as decoding a request's media.

    Args:
        put: is given (index, event) for every event, on threads of the engine; who drives the call gives each to `took`.
    """

    def __init__(
        self,
        engine: Engine | StagedEngine,
        requests: list[GenerationRequest],
        put: Callable[[int, Event | OmniReelError], None],
    ) -> None:
        self.failures: dict[int, OmniReelError] = {}
        self._engine = engine
        self._requests = requests
        self._put = put
        self._next = 0
        self._under_way: set[int] = set()
        self._given_up = threading.Event()

    @property
    def is_done(self) -> bool:
        """Whether every request has ended."""
        return self._next == len(self._requests) and not self._under_way

    def start(self) -> None:
        """Submits what may be under way; a request that is refused has ended with that."""
        while not self._given_up.is_set() and len(self._under_way) < MAX_AT_ONCE and self._next < len(self._requests):
            index = self._next
            try:
                self._engine.submit(self._requests[index], partial(self._put, index))
            except OmniReelError as error:
                if isinstance(error, QueueFull) and self._under_way:
                    # Others fill the line; when one of ours has ended there is another chance.
                    return
                self.failures[index] = error
            else:
                self._under_way.add(index)
                if self._given_up.is_set():
                    self._engine.cancel(self._requests[index].request_id)
            self._next += 1

    def took(self, index: int, event: Event | OmniReelError) -> None:
        """Learns that a request has ended, and submits the next one."""
        if isinstance(event, StepEvent):
            return
        if isinstance(event, OmniReelError):
            self.failures[index] = event
        self._under_way.discard(index)
        self.start()

    def cancel(self) -> None:
        """Gives up whatever has not ended. An interrupt may have come before a submitted request was noted down."""
        self._given_up.set()
        for index in (*self._under_way, self._next):
            if index < len(self._requests):
                self._engine.cancel(self._requests[index].request_id)

    def raise_first(self) -> None:
        """Raises the failure of the first request in order that has one."""
        if self.failures:
            raise self.failures[min(self.failures)]


def _engine(model: str | None, flags: dict[str, Any]) -> Engine | StagedEngine:
    said = flags if model is None else {"model": model, **flags}
    return make_engine(resolve(said, environment(), topology=topology_of))


class Omni:
    """A model in this process, loaded when the constructor returns. Safe to use from several threads.

    Args:
        model: a built-in model or the directory of a checkpoint; None for that of the environment, else "mini-h3".
        flags: any setting that `omnireel config show` lists, by its name.

    Raises:
        ClientError, SetupError, OutOfMemory: the model cannot be served here, or a setting is not allowed.
    """

    def __init__(self, model: str | None = None, **flags: Any) -> None:
        self._engine = _engine(model, flags)
        self._engine.start()

    def __enter__(self) -> Omni:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: DiffusionSamplingParams | None = None,
        *,
        output: Output | None = None,
        timeout_seconds: float | None = None,
        on_event: Callable[[StepEvent], None] | None = None,
        return_errors: Literal[False] = False,
    ) -> list[GenerationResult]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: DiffusionSamplingParams | None = None,
        *,
        output: Output | None = None,
        timeout_seconds: float | None = None,
        on_event: Callable[[StepEvent], None] | None = None,
        return_errors: bool,
    ) -> list[GenerationResult | OmniReelError]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: DiffusionSamplingParams | None = None,
        *,
        output: Output | None = None,
        timeout_seconds: float | None = None,
        on_event: Callable[[StepEvent], None] | None = None,
        return_errors: bool = False,
    ) -> list[GenerationResult] | list[GenerationResult | OmniReelError]:
        """Makes every clip and gives the results in order. All requests run, whatever happens to one of them.

        Args:
            prompts: a text, a request, or several of either.
            sampling_params: how to sample, for texts.
            output: the file to write or more about it, for texts; see `requests_of` for several clips.
            timeout_seconds: for each clip from when it is handed to the engine, waiting included, for texts.
            on_event: is given each step as it ends, on this thread; what it raises cancels everything.
            return_errors: put the error in the place of a result that failed. Otherwise the first one is raised when all
                have ended, and results of the others are to be had as files only.

        Raises:
            OmniReelError: the first failure, unless `return_errors`.
            KeyboardInterrupt: after everything was cancelled, which acts when the step under way ends.
        """
        requests = requests_of(prompts, sampling_params, output=output, timeout_seconds=timeout_seconds)
        events: queue.SimpleQueue[tuple[int, Event | OmniReelError]] = queue.SimpleQueue()
        call = _Call(self._engine, requests, lambda index, event: events.put((index, event)))
        results: dict[int, GenerationResult | OmniReelError] = {}
        try:
            call.start()
            while not call.is_done:
                index, event = events.get()
                call.took(index, event)
                if isinstance(event, GenerationResult):
                    results[index] = event
                elif on_event is not None and isinstance(event, StepEvent):
                    on_event(event)
        finally:
            call.cancel()
        if not return_errors:
            call.raise_first()
        results |= call.failures
        return [results[index] for index in range(len(requests))]

    def start_profile(self) -> None:
        """Begins a trace of torch's profiler for each process that computes, in `torch_profiler_dir`.

        Raises:
            Conflict: the settings name no folder, or a profile is under way.
        """
        self._engine.start_profile()

    def stop_profile(self) -> tuple[Path, ...]:
        """Ends that, and gives the traces, for a viewer such as Perfetto.

        Raises:
            Conflict: no profile is under way.
        """
        return self._engine.stop_profile()

    def metrics(self) -> str:
        """Figures of this engine since its start, in Prometheus' text format."""
        return self._engine.metrics.text()

    def close(self) -> None:
        """Cancels what is under way and gives the model's memory back; later calls do nothing."""
        self._engine.close()


class AsyncOmni:
    """The same model for programs with an event loop; many `generate` calls may be under way, in order of arrival.

    The constructor checks what it is given and returns at once; the model is loaded, beside the loop, by `async with`,
    `start` or the first `generate`. One object may be used from one event loop after another.

    Args and errors: see `Omni`.
    """

    def __init__(self, model: str | None = None, **flags: Any) -> None:
        self._engine = _engine(model, flags)

    async def __aenter__(self) -> AsyncOmni:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Loads the model on another thread; later calls wait for the first and do nothing."""
        if not self._engine.is_started:
            await asyncio.to_thread(self._engine.start)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: DiffusionSamplingParams | None = None,
        *,
        output: Output | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[Event]:
        """Yields a StepEvent after each step and a GenerationResult for each clip, which is one unless the request says so.

        Leaving the loop early (with `aclose`, or by cancelling the task) gives the request up. For the arguments see
        `Omni.generate`.

        Raises:
            OmniReelError: what ended the request; of several clips the first failure, when all have ended.
        """
        requests = requests_of(prompt, sampling_params, output=output, timeout_seconds=timeout_seconds)
        await self.start()
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[tuple[int, Event | OmniReelError]] = asyncio.Queue()
        call = _Call(self._engine, requests, partial(_hand_over, loop, events))
        # Media are decoded on the way in. Texts go in at once, so that their order is that of the calls.
        beside = asyncio.to_thread if any(request.media for request in requests) else _at_once
        try:
            await beside(call.start)
            while not call.is_done:
                index, event = await events.get()
                if not isinstance(event, StepEvent):
                    await beside(partial(call.took, index, event))
                if not isinstance(event, OmniReelError):
                    yield event
        finally:
            call.cancel()
        call.raise_first()

    def abort(self, request_id: str) -> None:
        """Gives a request up; unknown and finished ones are ignored. Safe to call from any thread."""
        self._engine.cancel(request_id)

    async def start_profile(self) -> None:
        """See `Omni.start_profile`."""
        await asyncio.to_thread(self._engine.start_profile)

    async def stop_profile(self) -> tuple[Path, ...]:
        """See `Omni.stop_profile`."""
        return await asyncio.to_thread(self._engine.stop_profile)

    def metrics(self) -> str:
        """Figures of this engine since its start, in Prometheus' text format."""
        return self._engine.metrics.text()

    async def close(self) -> None:
        """Cancels what is under way and gives the model's memory back; later calls do nothing."""
        await asyncio.to_thread(self._engine.close)


async def _at_once(work: Callable[[], None]) -> None:
    work()


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    events: asyncio.Queue[tuple[int, Event | OmniReelError]],
    index: int,
    event: Event | OmniReelError,
) -> None:
    try:
        loop.call_soon_threadsafe(events.put_nowait, (index, event))
    except RuntimeError:
        # The loop was closed before the request ended: nobody is left to hear of it.
        return
