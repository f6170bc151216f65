"""`omnireel reproduce FILE`: makes a clip again from the recipe inside it, and says whether the frames are the same."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnireel.cli import show
from omnireel.cli.command import Command
from omnireel.cli.interrupts import deferred
from omnireel.cli.media import add_media_flags, media_of
from omnireel.cli.session import add_engine_flags, add_talk_flags, bar_of, config_of, run_request, show_result, started
from omnireel.config import ModelSpec, convert, engine_settings, given, given_settings
from omnireel.errors import BadCheckpoint, BadSetting, MediaUnreadable, NotReproduced, UnknownModel
from omnireel.request import MediaRef, OutputSpec, Recipe

if TYPE_CHECKING:
    from omnireel.config import ResolvedConfig
    from omnireel.engine.orchestrator import Engine

_DESCRIPTION = """\
Makes a clip again from the recipe inside it and compares the frames.

The new clip is kept either way. Exit code 0: the frames are the same; 4: they differ, and the hint names what else does.
The model, device, number type, attention backend and threads are those of the recipe unless a flag says otherwise.
"""
_ATTENTION = ("diffusion_attention_backend", "diffusion_attention_config")
_SPEED = ("compile_blocks", "compile_vae", "fused_kernels", "vae_encode_precision", "ulysses_degree", "ulysses_mode")
_REMEMBERED = ("device", "dtype", *_ATTENTION, *_SPEED, "num_threads")
_AS_IT_WAS = "take the clip as omnireel wrote it"


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a clip that was made with its recipe")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file to write, replaced if it exists (default: NAME-again.mp4)"
    )
    parser.add_argument(
        "--ignore-weights", action="store_true", help="go on where the weights are not those of the recipe"
    )
    add_media_flags(parser)
    add_talk_flags(parser)
    add_engine_flags(parser)


def _run(arguments: argparse.Namespace) -> int:
    with deferred():
        from omnireel.engine.recipe import request_from_recipe
    from omnireel.media.recipe import read_recipe

    recipe = read_recipe(Path(arguments.file))
    config = config_of(arguments, defaults=_settings(arguments, recipe))
    path = Path(arguments.output or f"{Path(arguments.file).stem}-again.mp4")
    request = replace(
        request_from_recipe(recipe, OutputSpec(path=path)),
        media=_media(arguments, recipe),
        timeout_seconds=config.run.timeout_seconds,
    )
    engine = _engine(config, recipe)
    engine.admit(request)
    bar = bar_of(arguments, config)
    with started(engine, bar):
        if not arguments.ignore_weights:
            _check_weights(engine, recipe)
        result = run_request(engine, request, bar)
    made = result.recipe
    if made is None or made.frames_digest != recipe.frames_digest:
        raise _not_reproduced(recipe, made, path)
    is_same_sound = made.wave_digest == recipe.wave_digest
    show_result(result, bar, as_json=arguments.json, more={"is_same_frames": True, "is_same_sound": is_same_sound})
    show.note("the frames are the same" + ("" if is_same_sound else "; the sound differs"))
    return 0


def _media(arguments: argparse.Namespace, recipe: Recipe) -> tuple[MediaRef, ...]:
    """The files that the clip was made with, which the clip does not carry."""
    media = media_of(arguments)
    if len(media) != len(recipe.media):
        files = ", ".join(f"{item['kind']} as {item['role']}" for item in recipe.media) or "no files"
        hint = "give the same files with --image, --last-image and --reference"
        raise MediaUnreadable(arguments.file, f"was made with {files}, {len(media)} given", hint=hint)
    return media


def _settings(arguments: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """The recipe's settings of the engine; its device only where there is one.

    A clip may come from anybody, so it settles what moves a result and nothing else, and opens no path and no repository:
    a recipe knows its model by a name.
    """
    from omnireel.platforms import all_platforms

    devices = [platform.name for platform in all_platforms() if platform.available()]
    known = engine_settings()
    found = {name: recipe.engine[name] for name in _REMEMBERED if recipe.engine.get(name) is not None}
    if found.get("device") not in devices:
        # What was on for a device that is not here says nothing about this one.
        found = {name: value for name, value in found.items() if name not in ("device", *_SPEED)}
    if given_settings(arguments).keys() & set(_ATTENTION):
        # Whichever is typed, it is instead of what the recipe remembers of attention.
        found = {name: value for name, value in found.items() if name not in _ATTENTION}
    _check_downloads(arguments.file, [found.get(name) for name in _ATTENTION])
    try:
        found = {name: convert(known[name], value) for name, value in found.items()}
    except ValueError:
        raise MediaUnreadable(arguments.file, "has a damaged recipe", hint=_AS_IT_WAS) from None
    if "model" not in given(arguments, ModelSpec) and (
        Path(recipe.model).name != recipe.model or recipe.model[:1] == "~"
    ):
        hint = "name the checkpoint with --model, if the clip is from somebody you trust"
        raise MediaUnreadable(arguments.file, f"names its model by a path, {recipe.model[:80]!r}", hint=hint)
    return {"model": recipe.model, **found}


def _check_downloads(file: str, attention: list[Any]) -> None:
    """A clip from anybody must not make this machine fetch and run code."""
    from omnireel.attention import all_backends

    told = json.dumps(attention).upper()
    found = [backend.name for backend in all_backends() if backend.can.is_downloaded and backend.name in told]
    if found:
        hint = f"name it with --diffusion-attention-backend {found[0]}, if the clip is from somebody you trust"
        raise MediaUnreadable(file, f"was made with attention that is downloaded, {found[0]}", hint=hint)


def _engine(config: ResolvedConfig, recipe: Recipe) -> Engine:
    from omnireel.engine.orchestrator import Engine

    if len(config.stages) > 1:
        allowed = "a clip is made again by the model of its last stage alone"
        raise BadSetting("pipeline", config.topology.name, str(config.sources["pipeline"]), allowed)
    try:
        return Engine(config)
    except UnknownModel as error:
        if config.model.model != recipe.model:
            raise
        hint = "the clip was made with a checkpoint of this name; give its directory with --model"
        raise UnknownModel(recipe.model, error.details["known"], hint=hint) from None


def _check_weights(engine: Engine, recipe: Recipe) -> None:
    if engine.weights_digest != recipe.weights_digest:
        raise BadCheckpoint(
            engine.checkpoint.name,
            "has other weights than the clip was made with",
            expected=recipe.weights_digest,
            found=engine.weights_digest,
            hint="name the right checkpoint with --model, or try these with --ignore-weights",
        )


def _not_reproduced(recipe: Recipe, made: Recipe | None, path: Path) -> NotReproduced:
    differing = [] if made is None else list(_differences(recipe, made))
    what = "; ".join(differing) or "nothing that a recipe records: look at the processor, its libraries and the driver"
    error = NotReproduced(
        recipe.frames_digest,
        "" if made is None else made.frames_digest,
        hint=f"what differs: {what}; the new clip is {path}",
    )
    error.details.update(path=str(path), differences=differing)
    return error


def _differences(then: Recipe, now: Recipe) -> Iterator[str]:
    if then.weights_digest != now.weights_digest:
        yield "weights"
    for index, (before, after) in enumerate(zip(then.media, now.media, strict=False)):
        if before != after:
            yield f"file {index + 1}, the {before['kind']} as {before['role']}"
    pairs: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = (
        (then.versions, now.versions),
        (then.engine, now.engine),
    )
    for before, after in pairs:
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                yield f"{name} {before.get(name, 'unknown')} then, {after.get(name, 'unknown')} now"


COMMAND = Command(
    name="reproduce",
    summary="make a clip again from its recipe and compare the frames",
    add_flags=_add_flags,
    run=_run,
    usage="[flags] FILE",
    description=_DESCRIPTION,
)
