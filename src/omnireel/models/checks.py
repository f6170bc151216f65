"""Checks that the rules of every model share: each gives the value or raises, naming field, value and what is allowed."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnireel.errors import BadSetting, InvalidRequest, nearest
from omnireel.request import DiffusionSamplingParams, GenerationRequest, OutputSpec

MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1


def request_types(request: GenerationRequest) -> GenerationRequest:
    """A request whose fields are of their types, as far as the engine itself relies on them; values are for the rules."""
    output = request.output
    if not isinstance(request.sampling, DiffusionSamplingParams):
        raise InvalidRequest("sampling", request.sampling, "it must be DiffusionSamplingParams(...)")
    if not isinstance(output, OutputSpec):
        raise InvalidRequest("output", output, "it must be OutputSpec(...)")
    if output.path is not None and not isinstance(output.path, Path):
        raise InvalidRequest("output.path", output.path, "it must be a pathlib.Path")
    if not isinstance(output.recipe, bool):
        raise InvalidRequest("output.recipe", output.recipe, "it must be True or False")
    if not isinstance(request.media, tuple | list):
        raise InvalidRequest("media", request.media, "it must be a tuple of MediaRef(...) and MediaInput(...)")
    if not isinstance(request.priority, int) or isinstance(request.priority, bool):
        raise InvalidRequest("priority", request.priority, "it must be a whole number")
    # It is written to the log, where a line break could pretend to be another line.
    if not isinstance(request.request_id, str) or not request.request_id.isprintable() or not request.request_id:
        raise InvalidRequest("request_id", request.request_id, "it must be a text on one line")
    return request


def prompt_text(prompt: object) -> str:
    """A prompt that says something."""
    if not isinstance(prompt, str):
        raise InvalidRequest("prompt", prompt, "it must be a text")
    if not prompt.strip():
        raise InvalidRequest("prompt", prompt, "it must not be empty or blank")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        # Bytes of a shell that are no UTF-8 arrive as lone surrogates, which no tokenizer takes.
        broken = prompt[error.start : error.end]
        raise InvalidRequest("prompt", broken, f"it must be Unicode, and character {error.start + 1} is none") from None
    return prompt


def whole(field: str, value: object, low: int, high: int, *, multiple: int = 1) -> int:
    """A whole number in [low, high] that `multiple` divides."""
    of = "" if multiple == 1 else f" that is a multiple of {multiple}"
    allowed = f"it must be a whole number from {low} to {high}{of}"
    # The range goes first: NaN and infinity are in none.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidRequest(field, value, allowed)
    if value != int(value) or int(value) % multiple:
        raise InvalidRequest(field, value, allowed)
    return int(value)


def number(field: str, value: object, low: float, high: float) -> float:
    """A finite number in [low, high]."""
    allowed = f"it must be a number from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidRequest(field, value, allowed)
    return float(value)


def finite(field: str, value: object) -> float:
    """Any number but NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InvalidRequest(field, value, "it must be a finite number")
    return float(value)


def seed_or_random(value: object) -> int:
    """A 64-bit seed; one drawn from the system when there is none, small enough to be typed again."""
    return secrets.randbelow(2**31) if value is None else whole("seed", value, MIN_SEED, MAX_SEED)


def one_of(field: str, value: object, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidRequest(field, value, f"it must be {' or '.join(allowed)}")
    return value


def start_task(model: str, value: str, allowed: tuple[str, ...]) -> str:
    """What a service is started for, as the model spells it; letters may be of either case.

    Raises:
        BadSetting: the model has no such task; the message begins with its name and the flag.
    """
    found = next((word for word in allowed if word.lower() == value.lower()), None)
    if found is None:
        close = nearest(value, allowed)
        hint = f"did you mean {close}?" if close else ""
        allowed_words = f"it must be {' or '.join(allowed)}"
        raise BadSetting(f"{model} --task-type", value, "the setting task_type", allowed_words, hint=hint)
    return found


def no_unknown(field: str, given: object, known: tuple[str, ...]) -> Mapping[str, Any]:
    """A mapping of which every key is known."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(field, given, "it must be an object of names and values")
    for key in given:
        if key not in known:
            close = nearest(str(key), known)
            hint = f"did you mean {close!r}?" if close else ""
            raise InvalidRequest(f"{field}.{key}", given[key], f"known are {', '.join(known) or 'none'}", hint=hint)
    return given
