"""What bodies look like, as the OpenAPI document tells it. `asked` reads them; nothing is checked against these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnireel.config import Setting, settings_of
from omnireel.request import DiffusionSamplingParams
from omnireel.server.asked import SAMPLING

_NUMBER = {"anyOf": [{"type": "number"}, {"type": "string"}]}
_WHOLE = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_TRUTH = {"anyOf": [{"type": "boolean"}, {"type": "string"}]}
_OBJECT = {"anyOf": [{"type": "object"}, {"type": "string", "description": "the same as JSON"}]}
_TYPES: Mapping[type, dict[str, Any]] = {int: _WHOLE, float: _NUMBER}
_URL = {"type": "string", "description": "a URL that begins with http:, https: or data:"}
_NAMED_MEDIUM = {
    "type": "object",
    "properties": dict.fromkeys(("image_url", "video_url", "audio_url"), _URL) | {"file_id": {"type": "string"}},
}
_CLIP = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
_FILE = {"type": "string", "format": "binary"}
_MEDIA = ("input_reference", "input_references", "image_reference", "video_reference", "audio_reference")


def _fields(*, is_form: bool) -> dict[str, Any]:
    """Every field but `video`, as a schema by name."""
    one = [_URL, _NAMED_MEDIUM, *([_FILE] if is_form else [])]
    media = {name: {"anyOf": [*one, {"type": "array", "items": {"anyOf": one}}]} for name in _MEDIA}
    sampling = {item.name: _sampled(item) for item in settings_of(DiffusionSamplingParams) if item.name in SAMPLING}
    return {
        "prompt": {"type": "string", "minLength": 1},
        "model": {"type": "string", "description": "a name that /v1/models tells"},
        "size": {"type": "string", "description": "WIDTHxHEIGHT, or auto"},
        **sampling,
        "extra_params": {**_OBJECT, "description": "what only some models know, by name"},
        **media,
        "start_time_seconds": {**_NUMBER, "description": "where the one reference clip begins"},
        "frame_indices": {
            "anyOf": [{"type": "array", "items": {"type": "integer", "enum": [0, -1]}}, {"type": "string"}],
            "description": "where pictures stand in the clip: 0 first, -1 last",
        },
        "quality": {"type": "string", "enum": ["high", "standard", "auto"]},
        "return_stage_metrics": {**_TRUTH, "description": "put figures into `metrics`"},
        "generate_sound": _TRUTH,
        "user": {"type": "string", "maxLength": 512},
    }


def _sampled(item: Setting) -> dict[str, Any]:
    unit = f" [{item.unit}]" if item.unit else ""
    return {**_TYPES.get(item.kind, {"type": "string"}), "description": item.help + unit}


def _body(*required: str, needs_body: bool = True) -> dict[str, Any]:
    content = {}
    for kind, is_form in (("multipart/form-data", True), ("application/json", False)):
        video = {"anyOf": [_CLIP, *([_FILE] if is_form else [_URL])]}
        properties = _fields(is_form=is_form) | ({"video": video} if "video" in required else {})
        schema = {"type": "object", "required": list(required), "properties": properties}
        # A form also has parts of objects as fields: extra_params[task].
        content[kind] = {"schema": schema if is_form else {**schema, "additionalProperties": False}}
    return {"requestBody": {"required": needs_body, "content": content}}


CREATE_BODY = _body("prompt")
REMIX_BODY = _body("prompt")
CLIP_BODY = _body("prompt", "video")
