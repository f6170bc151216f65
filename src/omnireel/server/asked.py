"""What a request asks for: its fields checked and named as the engine names them. Media are told apart, not opened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from starlette.datastructures import UploadFile

from omnireel.config import sampling_params, settings_of
from omnireel.errors import InvalidRequest, UnknownModel, nearest
from omnireel.request import DiffusionSamplingParams
from omnireel.server.form import Fields, parsed

MEDIA_FIELDS = (
    "input_reference", "input_references", "image_reference", "video_reference", "audio_reference", "video",
)  # fmt: skip
_URL_KEYS = ("image_url", "video_url", "audio_url")
SAMPLING = tuple(
    item.name for item in fields(DiffusionSamplingParams) if item.name not in ("extra_args", "output_type")
)
_OWN = (
    "prompt", "model", "size", "extra_params", "quality", "user", "lora", "boundary_ratio", "generate_sound",
    "sound_duration", "return_stage_metrics", "start_time_seconds", "frame_indices", *MEDIA_FIELDS,
)  # fmt: skip
FIELDS = tuple(dict.fromkeys((*_OWN, *SAMPLING)))
_WHOLE = tuple(item.name for item in settings_of(DiffusionSamplingParams) if item.kind is int)
_DOTTED = re.compile(r"\s*([+-]?[0-9]{1,19})\.0*\s*")
_SIZE = re.compile("\\s*([0-9]{1,6})\\s*[xX*\u00d7]\\s*([0-9]{1,6})\\s*")
_FREE_RATIOS = ("auto", "adaptive")
MAX_USER_LETTERS = 512
MAX_PROMPT_LETTERS = 100_000
"""More than any encoder takes, and little enough to be told again with every list of jobs."""


@dataclass(frozen=True, slots=True)
class Source:
    """One medium of a request, not opened. field: what errors call it; kind: "" where only the bytes tell."""

    field: str
    kind: str
    upload: UploadFile | None = None
    url: str = ""
    file_id: str = ""
    video_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request in the engine's words. sampling: by field name of DiffusionSamplingParams, as far as given.

    frame_indices: where pictures stand in the clip (0 first, -1 last), None where it was not said; starts: where clips begin.
    """

    prompt: str
    sampling: Mapping[str, Any]
    sources: tuple[Source, ...]
    frame_indices: tuple[int, ...] | None = None
    starts: tuple[float, ...] = ()
    quality: str | None = None
    user: str | None = None
    wants_metrics: bool = False


def asked_of(given: Fields, names: tuple[str, ...]) -> Asked:
    """The fields of a body as a request.

    Args:
        given: the body.
        names: what the served model answers to.

    Raises:
        InvalidRequest: naming the field, the value and what is allowed.
        UnknownModel: another model was asked for.
    """
    values = {name: value for name, value in given.values.items() if not _is_absent(name, value)}
    _refuse_unknown(values)
    model = _text(values, "model")
    if model is not None and model not in names:
        raise UnknownModel(model[:80], names)
    extra = dict(_object(values, "extra_params"))
    sampling = _sampling(values, extra)
    sources = tuple(_sources(values))
    _refuse_unserved(values)
    user = _text(values, "user")
    if user is not None and len(user) > MAX_USER_LETTERS:
        raise InvalidRequest("user", user, f"it must have at most {MAX_USER_LETTERS} letters")
    metrics = values.get("return_stage_metrics", False)
    extra.setdefault("frame_indices", values.get("frame_indices"))
    frame_indices, starts = _frame_indices(extra), _starts(values, extra)
    prompt = _text(values, "prompt") or ""
    if len(prompt) > MAX_PROMPT_LETTERS:
        raise InvalidRequest("prompt", prompt[:80], f"it must have at most {MAX_PROMPT_LETTERS} letters")
    return Asked(
        prompt=prompt,
        sampling=sampling | ({"extra_args": extra} if extra else {}),
        sources=sources,
        frame_indices=frame_indices,
        starts=starts,
        quality=_text(values, "quality"),
        user=user,
        wants_metrics=str(metrics).lower() in ("true", "1"),
    )


def _is_absent(name: str, value: Any) -> bool:
    """Empty form fields and nulls say nothing; an empty prompt is a mistake to be told."""
    return value is None or (value == "" and name != "prompt")


def _refuse_unknown(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name not in FIELDS:
            close = nearest(name, FIELDS)
            shown = "a file" if isinstance(value, UploadFile) else value
            raise InvalidRequest(
                name[:60], shown, "there is no such field", hint=f"did you mean {close}?" if close else ""
            )


def _sampling(values: Mapping[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Sampling fields by name, of their types. Of several ways to say the size, width and height win over a ratio."""
    raw = {name: values[name] for name in SAMPLING if name in values}
    for name, value in raw.items():
        if isinstance(value, list | dict | UploadFile):
            raise InvalidRequest(name, "...", "it must be one value")
    sizes = _size(values)
    if sizes is not None:
        raw |= {"width": sizes[0], "height": sizes[1]}
    if isinstance(raw.get("seconds"), str):
        raw["seconds"] = raw["seconds"].strip().removesuffix("s")
    if "num_frames" in raw:
        raw.pop("seconds", None)
    for place in (raw, extra):
        if str(place.get("aspect_ratio")).lower() in _FREE_RATIOS:
            del place["aspect_ratio"]
        if "width" in raw and "height" in raw:
            place.pop("aspect_ratio", None)
            place.pop("short_edge", None)
    params = sampling_params({name: _undotted(value) if name in _WHOLE else value for name, value in raw.items()})
    return {name: getattr(params, name) for name in raw}


def _undotted(value: Any) -> Any:
    """A whole number that was written with a point, which in JSON is no other one and which forms of some clients send."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    match = _DOTTED.fullmatch(value) if isinstance(value, str) else None
    return value if match is None else match[1]


def _size(values: Mapping[str, Any]) -> tuple[int, int] | None:
    text = _text(values, "size")
    if text is None or text.strip().lower() == "auto":
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidRequest("size", text, "it must be WIDTHxHEIGHT, such as 1344x768, or auto")
    return int(match[1]), int(match[2])


def _sources(values: Mapping[str, Any]) -> Iterator[Source]:
    """Every medium in the order of the body."""
    for name, value in values.items():
        if name in MEDIA_FIELDS:
            items = _list(name, value)
            for index, item in enumerate(items):
                yield _source(name if len(items) == 1 else f"{name}[{index}]", name.removesuffix("_reference"), item)


def _list(name: str, value: Any) -> list[Any]:
    """One medium or several, where each may still be JSON in a form's text."""
    found: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and item.lstrip()[:1] in ("{", "["):
            try:
                decoded = parsed(item)
            except ValueError:
                raise InvalidRequest(name, "...", "it begins like JSON and is none") from None
            found += decoded if isinstance(decoded, list) else [decoded]
        else:
            found.append(item)
    return found


def _source(field: str, word: str, item: Any) -> Source:
    kind = word if word in ("image", "video", "audio") else ""
    if isinstance(item, UploadFile):
        return Source(field, kind, upload=item)
    if isinstance(item, str):
        return Source(field, kind, url=item)
    if isinstance(item, dict):
        known = [key for key in (*_URL_KEYS, "file_id", "id") if item.get(key) is not None]
        if len(known) == 1 and (found := _named(field, kind, known[0], item[known[0]])) is not None:
            return found
    raise InvalidRequest(
        field, "...", "it must be a file, a URL, or an object with one of image_url, video_url, audio_url or file_id"
    )


def _named(field: str, kind: str, key: str, value: Any) -> Source | None:
    if isinstance(value, dict):
        value = value.get("url")
    if not isinstance(value, str):
        return None
    if key == "id":
        return Source(field, "video", video_id=value) if field == "video" else None
    if key == "file_id":
        return Source(field, kind, file_id=value)
    named = key.removesuffix("_url")
    return None if kind and kind != named else Source(field, named, url=value)


def _frame_indices(extra: dict[str, Any]) -> tuple[int, ...] | None:
    given = extra.pop("frame_indices", None)
    if given is None:
        return None
    try:
        found = parsed(given) if isinstance(given, str) else given
    except ValueError:
        found = None
    found = [found] if isinstance(found, int) else found
    if found not in ([0], [-1], [0, -1]):
        raise InvalidRequest("extra_params.frame_indices", given, "it must be [0], [-1] or [0, -1]")
    return tuple(found)


def _starts(values: Mapping[str, Any], extra: dict[str, Any]) -> tuple[float, ...]:
    given = extra.pop("start_time_seconds", None)
    given = values.get("start_time_seconds") if given is None else given
    if given is None:
        return ()
    try:
        found = [float(item) for item in (given if isinstance(given, list) else [given])]
    except (TypeError, ValueError, OverflowError):
        found = [-1.0]
    if not all(0 <= item < 1e6 for item in found):
        raise InvalidRequest("start_time_seconds", given, "it must be a number of seconds, 0 or more, for each clip")
    return tuple(found)


def _refuse_unserved(values: Mapping[str, Any]) -> None:
    """Fields of other models, whose absence here a client should hear of."""
    for name, why in (
        ("lora", "no adapters are loaded here"),
        ("boundary_ratio", "the served model has one expert"),
        ("sound_duration", "the sound is as long as the picture"),
    ):
        if name in values:
            raise InvalidRequest(name, "...", f"{why}; leave it out")
    if str(values.get("generate_sound", "true")).lower() not in ("true", "1"):
        raise InvalidRequest("generate_sound", values["generate_sound"], "the served model always makes sound")
    if _text(values, "quality") not in (None, "high", "standard", "auto"):
        raise InvalidRequest("quality", values["quality"], "clips are written as H.264; it must be high or left out")


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(name, "a file" if isinstance(value, UploadFile) else value, "it must be a text")
    return value


def _object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    if isinstance(value, str):
        try:
            value = parsed(value)
        except ValueError:
            raise InvalidRequest(name, value, "it must be a JSON object") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(name, "...", "it must be a JSON object")
    return value
