"""The Python surface: `Omni` for programs that wait, `AsyncOmni` for those that await. Both are thin over one engine."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from omnireel.config import resolve
from omnireel.engine.orchestrator import Engine
from omnireel.engine.result import GenerationResult
from omnireel.engine.ticket import Ticket
from omnireel.errors import InvalidRequest, OmniReelError
from omnireel.models import checks
from omnireel.observe.env import environment
from omnireel.request import DiffusionSamplingParams, GenerationRequest, OutputSpec, StepEvent, new_request_id

Prompt: TypeAlias = str | GenerationRequest
Event: TypeAlias = StepEvent | GenerationResult

MAX_OUTPUTS = 10


def requests_of(
    prompts: Prompt | Sequence[Prompt],
    sampling_params: DiffusionSamplingParams | None = None,
    *,
    output: OutputSpec | None = None,
    timeout_seconds: float | None = None,
) -> list[GenerationRequest]:
    """What a caller passed as plain requests, one for each clip.

    A text takes the other arguments; a GenerationRequest has its own. `num_outputs_per_prompt` = n becomes n requests with
    seeds seed, seed + 1, ... and, from the second on, output names with -2, -3, ... before the suffix.

    Raises:
        InvalidRequest: num_outputs_per_prompt is out of range.
    """
    found: list[GenerationRequest] = []
    for prompt in [prompts] if isinstance(prompts, str | GenerationRequest) else prompts:
        if isinstance(prompt, GenerationRequest):
            found += _expanded(prompt)
            continue
        request = GenerationRequest(
            prompt=prompt,
            sampling=sampling_params or DiffusionSamplingParams(),
            output=output or OutputSpec(),
            timeout_seconds=timeout_seconds,
        )
        found += _expanded(request)
    return found


def _expanded(request: GenerationRequest) -> list[GenerationRequest]:
    asked = request.sampling.num_outputs_per_prompt
    count = 1 if asked is None else checks.whole("num_outputs_per_prompt", asked, 1, MAX_OUTPUTS)
    if count == 1:
        return [replace(request, sampling=replace(request.sampling, num_outputs_per_prompt=None))]
    seed = checks.seed_or_random(request.sampling.seed)
    return [
        replace(
            request,
            request_id=request.request_id if index == 0 else new_request_id(),
            sampling=replace(request.sampling, num_outputs_per_prompt=None, seed=seed + index),
            output=replace(request.output, path=_numbered(request.output.path, index)),
        )
        for index in range(count)
    ]


def _numbered(path: Path | None, index: int) -> Path | None:
    if path is None or index == 0:
        return path
    return path.with_name(f"{path.stem}-{index + 1}{path.suffix}")


class Omni:
    """A model in this process.

    Args:
        model: a built-in model or the directory of a checkpoint.
        flags: any setting that `omnireel config show` lists, by its name.

    Raises:
        ClientError, SetupError: the model cannot be served here, or a setting is not allowed.
    """

    def __init__(self, model: str = "mini-h3", **flags: Any) -> None:
        self._engine = Engine(resolve({"model": model, **flags}, environment()))
        self._engine.start()

    def __enter__(self) -> Omni:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: DiffusionSamplingParams | None = None,
        *,
        output: OutputSpec | None = None,
        timeout_seconds: float | None = None,
        on_event: Callable[[StepEvent], None] | None = None,
        return_errors: bool = False,
    ) -> list[Any]:
        """Makes every clip and gives the results in order. All requests run, whatever happens to one of them.

        Args:
            prompts: a text, a request, or several of either.
            sampling_params: how to sample, for texts.
            output: where clips go, for texts.
            timeout_seconds: for each clip, waiting included, for texts.
            on_event: is given each step as it ends.
            return_errors: put an error in the place of a result that failed; otherwise the first one is raised, when all
                have ended.

        Raises:
            OmniReelError: the first failure, unless `return_errors`.
            KeyboardInterrupt: after every request was cancelled.
        """
        requests = requests_of(prompts, sampling_params, output=output, timeout_seconds=timeout_seconds)
        ended = self._run_all(requests, on_event)
        if not return_errors:
            for end in ended:
                if isinstance(end, OmniReelError):
                    raise end
        return ended

    def close(self) -> None:
        """Cancels what is under way and gives the model's memory back; later calls do nothing."""
        self._engine.close()

    def _run_all(
        self, requests: list[GenerationRequest], on_event: Callable[[StepEvent], None] | None
    ) -> list[GenerationResult | OmniReelError]:
        waiting = iter(enumerate(requests))
        ended: dict[int, GenerationResult | OmniReelError] = {}
        running: dict[int, Ticket] = {}
        events: queue.SimpleQueue[tuple[int, Event | OmniReelError]] = queue.SimpleQueue()
        try:
            while len(ended) < len(requests):
                # Two at a time keep the engine busy while a file is written.
                while len(running) < 2 and (item := next(waiting, None)) is not None:
                    index, request = item
                    try:
                        running[index] = self._engine.submit(request, partial(_tagged, events, index))
                    except OmniReelError as error:
                        ended[index] = error
                if not running:
                    continue
                index, event = events.get()
                if not isinstance(event, StepEvent):
                    ended[index] = event
                    del running[index]
                elif on_event is not None:
                    on_event(event)
        except BaseException:
            for ticket in running.values():
                ticket.cancel()
            raise
        return [ended[index] for index in range(len(requests))]


def _tagged(
    events: queue.SimpleQueue[tuple[int, Event | OmniReelError]], index: int, event: Event | OmniReelError
) -> None:
    events.put((index, event))


class AsyncOmni:
    """The same model for programs with an event loop; many `generate` calls may be under way at once.

    The constructor loads the model and blocks meanwhile; use `await AsyncOmni.create(...)` inside a running loop.
    """

    def __init__(self, model: str = "mini-h3", **flags: Any) -> None:
        self._engine = Engine(resolve({"model": model, **flags}, environment()))
        self._engine.start()
        self._tickets: dict[str, Ticket] = {}

    @classmethod
    async def create(cls, model: str = "mini-h3", **flags: Any) -> AsyncOmni:
        """Loads the model on another thread."""
        return await asyncio.to_thread(cls, model, **flags)

    async def __aenter__(self) -> AsyncOmni:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: DiffusionSamplingParams | None = None,
        *,
        output: OutputSpec | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[Event]:
        """Yields a StepEvent after each step and the GenerationResult at the end.

        Leaving the loop early, or cancelling the task, gives the request up.

        Raises:
            OmniReelError: what ended the request.
        """
        requests = requests_of(prompt, sampling_params, output=output, timeout_seconds=timeout_seconds)
        if len(requests) != 1:
            raise InvalidRequest(
                "num_outputs_per_prompt", len(requests), "it must be 1 here; call generate once a clip"
            )
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | OmniReelError] = asyncio.Queue()
        ticket = self._engine.submit(requests[0], lambda event: _hand_over(loop, events, event))
        self._tickets[ticket.request_id] = ticket
        try:
            while True:
                event = await events.get()
                if isinstance(event, OmniReelError):
                    raise event
                yield event
                if isinstance(event, GenerationResult):
                    return
        finally:
            ticket.cancel()
            self._tickets.pop(ticket.request_id, None)

    def abort(self, request_id: str) -> None:
        """Gives a request up; unknown and finished ones are ignored."""
        ticket = self._tickets.get(request_id)
        if ticket is not None:
            ticket.cancel()

    async def close(self) -> None:
        """Cancels what is under way and gives the model's memory back; later calls do nothing."""
        await asyncio.to_thread(self._engine.close)


def _hand_over(
    loop: asyncio.AbstractEventLoop, events: asyncio.Queue[Event | OmniReelError], event: Event | OmniReelError
) -> None:
    try:
        loop.call_soon_threadsafe(events.put_nowait, event)
    except RuntimeError:
        # The loop was closed before the request ended: nobody is left to hear of it.
        return
