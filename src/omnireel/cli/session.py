"""What the commands that make clips share: the flags of an engine, and one request watched from start to end."""

from __future__ import annotations

import argparse
import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from omnireel.cli import interrupts, show
from omnireel.config import ResolvedConfig, add_settings, given_settings, resolve
from omnireel.errors import OmniReelError
from omnireel.models.discover import topology_of
from omnireel.observe import log
from omnireel.observe.env import environment
from omnireel.observe.progress import ProgressBar
from omnireel.observe.title import set_title
from omnireel.request import GenerationRequest, StepEvent

if TYPE_CHECKING:
    from omnireel.engine.orchestrator import Engine
    from omnireel.engine.result import GenerationResult
    from omnireel.engine.staged import StagedEngine
    from omnireel.request import FramesU8


def add_engine_flags(parser: argparse.ArgumentParser, *, has_server: bool = False) -> None:
    """The flags of an engine, of a server too where there is one, and -v; behind all others, whose names win."""
    add_settings(parser, leave_out=() if has_server else ("server",))
    parser.add_argument("-v", "--verbose", action="store_true", help="log what the engine does (--log-level info)")


def add_talk_flags(parser: argparse.ArgumentParser) -> None:
    """What a command that takes long says while it runs and at its end."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the file name")
    parser.add_argument("-q", "--quiet", action="store_true", help="draw no progress bar")


def config_of(arguments: argparse.Namespace, defaults: Mapping[str, Any] | None = None) -> ResolvedConfig:
    """The config of the command line over `defaults` over the environment; starts the log.

    Raises:
        BadSetting: see `config.resolve`.
    """
    flags: dict[str, Any] = {**(defaults or {}), **({"log_level": "info"} if arguments.verbose else {})}
    flags |= given_settings(arguments)
    config = resolve(flags, environment(), topology=topology_of)
    log.configure(config.run.log_level, config.run.log_format)
    return config


def bar_of(arguments: argparse.Namespace, config: ResolvedConfig) -> ProgressBar:
    """The progress bar; log lines take its place where there are to be any."""
    return ProgressBar(enabled=not arguments.quiet and config.run.log_level in ("warning", "error"))


@contextmanager
def started(engine: Engine | StagedEngine, bar: ProgressBar) -> Iterator[None]:
    """Loads the model, and closes the engine whatever happens; a request that still runs then is cancelled."""
    try:
        with bar:
            bar.phase(f"loading {engine.checkpoint.name}")
            set_title(engine.checkpoint.name)
            interrupts.check()
            engine.start()
            interrupts.check()
        yield
    except KeyboardInterrupt:
        if bar.is_drawn:
            show.note("stopping when the step under way is done; the same again ends the program at once")
        raise
    finally:
        engine.close()


def run_request(
    engine: Engine | StagedEngine,
    request: GenerationRequest,
    bar: ProgressBar,
    on_preview: Callable[[FramesU8], None] | None = None,
) -> GenerationResult:
    """Runs one request on a started engine and draws its steps.

    Raises:
        OmniReelError: what ended the request.
        KeyboardInterrupt: a signal came; closing the engine ends the request.
    """
    events: queue.SimpleQueue[StepEvent | GenerationResult | OmniReelError] = queue.SimpleQueue()
    with bar:
        bar.phase("reading the prompt")
        engine.submit(request, events.put)
        while isinstance(event := events.get(), StepEvent):
            bar.update(event.index, event.total, event.seconds)
            if event.preview is not None and on_preview is not None:
                on_preview(event.preview)
            if event.index == event.total:
                bar.phase("decoding and writing")
    if isinstance(event, OmniReelError):
        raise event
    return event


def show_result(
    result: GenerationResult, bar: ProgressBar, *, as_json: bool, more: Mapping[str, Any] | None = None
) -> None:
    """The file's name, or one JSON object about it, into which `more` goes; where a bar was drawn, figures to stderr."""
    if bar.is_drawn:
        seconds = sum(result.stage_durations.values())
        show.note(f"{result.workload.num_frames} frames in {seconds:.1f} s, seed {result.seed}")
    if as_json:
        show.data({**result_data(result), **(more or {})})
        return
    for name, part in result.profile.items():
        show.note(f"{name}: {part.seconds:.3f} s in {part.calls}, peak {part.peak_memory_mb:.0f} MiB")
    if result.encoded is not None:
        show.path(result.encoded.path)


def result_data(result: GenerationResult) -> dict[str, Any]:
    """A finished request as plain data."""
    work, file = result.workload, result.encoded
    return {
        "path": None if file is None else show.name_of(file.path),
        "sha256": None if file is None else file.digest.removeprefix("sha256:"),
        "size_bytes": None if file is None else file.size_bytes,
        "request_id": work.request_id,
        "task": work.task,
        "seed": work.seed,
        "size": f"{work.width}x{work.height}",
        "num_frames": work.num_frames,
        "fps": work.fps,
        "seconds": work.num_frames / work.fps,
        "num_inference_steps": work.num_inference_steps,
        "sampling_rate": result.sampling_rate,
        "stage_durations": dict(result.stage_durations),
        "peak_memory_mb": result.peak_memory_mb,
        "profile": {name: asdict(part) for name, part in result.profile.items()},
        "outputs": {name: output.text for name, output in result.outputs.items() if output.text is not None},
        "recipe": None if result.recipe is None else asdict(result.recipe),
    }
