"""`omnireel generate`: a prompt becomes a file, in this process or by a server.

What can be known to be wrong is told before the model is loaded: flags, output file, the model's own rules.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnireel.cli.command import Command
from omnireel.cli.interrupts import deferred
from omnireel.cli.media import add_media_flags, media_of
from omnireel.cli.prompt import add_prompt_flags, prompt_of
from omnireel.cli.session import add_engine_flags, add_talk_flags, bar_of, config_of, run_request, show_result, started
from omnireel.config import add_fields, converted, given, given_settings, sampling_params
from omnireel.errors import InvalidRequest
from omnireel.request import DiffusionSamplingParams, GenerationRequest, OutputSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnireel.engine.orchestrator import Engine
    from omnireel.engine.staged import StagedEngine
    from omnireel.request import FramesU8

_DESCRIPTION = """\
Makes a clip from a prompt and prints the name of the file.

examples:
  omnireel generate "a red kite over a harbour, gulls and wind" -o kite.mp4
  omnireel generate "rain on a tin roof" --seconds 6 --seed 7 --json
  omnireel generate "the ball rolls on" --image first.png --last-image last.png
  omnireel generate "she sings this" --reference image=face.jpg --reference audio=song.mp3 --model DIR
  omnireel generate "a kite" --pipeline prompt_rewrite --stage-0-model DIR_OF_A_LANGUAGE_MODEL
  omnireel generate - --model /models/MiniMax-H3 < prompt.txt
"""
_PREVIEW_EVERY = 5


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_prompt_flags(parser)
    add_media_flags(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the file to write, replaced if it exists (default: omnireel-SEED.mp4, with a number rather than replaced)",
    )
    parser.add_argument(
        "--preview", metavar="FILE", help=f"keep a preview picture here meanwhile, renewed every {_PREVIEW_EVERY} steps"
    )
    parser.add_argument(
        "--server", metavar="URL", help="have a running server make the clip; its key is that of OMNIREEL_API_KEY"
    )
    add_talk_flags(parser)
    add_fields(parser, OutputSpec, title="output", skip=("path",))
    add_fields(parser, DiffusionSamplingParams, title="sampling")
    add_engine_flags(parser)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.server is not None:
        return _run_there(arguments)
    config = config_of(arguments)
    request = GenerationRequest(
        prompt=prompt_of(arguments),
        media=media_of(arguments),
        sampling=sampling_params(given(arguments, DiffusionSamplingParams)),
        output=_output(arguments),
        timeout_seconds=config.run.timeout_seconds,
    )
    with deferred():
        from omnireel.engine.staged import make_engine

    on_preview = _preview_writer(arguments.preview)
    engine = make_engine(config)
    requests = _settled(request, engine)
    bar = bar_of(arguments, config)
    with started(engine, bar):
        for one in requests:
            show_result(run_request(engine, one, bar, on_preview), bar, as_json=arguments.json)
    return 0


def _run_there(arguments: argparse.Namespace) -> int:
    from omnireel.cli import remote, show

    remote.check_flags(arguments)
    config = config_of(arguments)
    asked = given(arguments, DiffusionSamplingParams)
    model = given_settings(arguments).get("model")
    server = remote.Server(arguments.server, (config.server.api_key or (None,))[0])
    found = remote.generate(
        server,
        remote.body_of(prompt_of(arguments), sampling_params(asked), tuple(asked), model),
        media_of(arguments),
        _output(arguments).path,
        bar=bar_of(arguments, config),
        on_preview=_preview_writer(arguments.preview),
    )
    if arguments.json:
        show.data(found)
    else:
        show.path(Path(found["path"]))
    return 0


def _output(arguments: argparse.Namespace) -> OutputSpec:
    values: dict[str, Any] = converted(OutputSpec, given(arguments, OutputSpec))
    if arguments.output is not None:
        values["path"] = Path(arguments.output)
    if arguments.preview is not None:
        values.setdefault("preview_every", _PREVIEW_EVERY)
    elif values.get("preview_every"):
        raise InvalidRequest("preview_every", values["preview_every"], "it needs --preview FILE")
    return OutputSpec(**values)


def _settled(request: GenerationRequest, engine: Engine | StagedEngine) -> list[GenerationRequest]:
    """One request a clip, each with its seed and its file, and each within the model's rules."""
    from omnireel.api import requests_of

    if request.sampling.output_type != "frames":
        raise InvalidRequest(
            "output_type",
            request.sampling.output_type,
            "the command writes clips, so it must be frames",
            hint="omnireel.Omni gives latents",
        )
    settled: list[GenerationRequest] = []
    for one in requests_of(request):
        seed = engine.admit(one).seed
        taken = [other.output.path for other in settled]
        path = _free_path(seed, taken) if one.output.path is None else one.output.path
        settled.append(replace(one, sampling=replace(one.sampling, seed=seed), output=replace(one.output, path=path)))
        engine.admit(settled[-1])
    return settled


def _free_path(seed: int, taken: list[Path | None]) -> Path:
    """omnireel-SEED.mp4 in the working directory, numbered where that is taken."""
    path, number = Path(f"omnireel-{seed}.mp4"), 1
    while path in taken or path.exists():
        number += 1
        path = Path(f"omnireel-{seed}-{number}.mp4")
    return path


def _preview_writer(name: str | None) -> Callable[[FramesU8], None] | None:
    if name is None:
        return None
    from omnireel.media.aside import check_writable
    from omnireel.media.image import PICTURE_SUFFIXES, write_picture

    path = Path(name)
    check_writable(path, suffixes=PICTURE_SUFFIXES)
    return lambda frame: write_picture(frame, path)


COMMAND = Command(
    name="generate",
    summary="make a clip from a prompt",
    add_flags=_add_flags,
    run=_run,
    usage='[flags] "PROMPT"',
    description=_DESCRIPTION,
)
