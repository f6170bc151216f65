"""The JSON schema of a deploy file, made of the fields; editors complete and check with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnireel.config.groups import GROUPS, SECTIONS, engine_settings, members, owners
from omnireel.config.values import Setting

_TYPES: Mapping[type, Mapping[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    Path: {"type": "string"},
    Mapping: {"type": "object"},
    tuple: {"type": "array", "items": {"type": "string"}},
}
_OF_THE_COMMAND = ("deploy_config", "stage_overrides")


def deploy_schema() -> dict[str, Any]:
    """A schema of draft 2020-12 with the settings that can be set; types that a stage does not have are for `resolve`."""
    wide = _properties([name for name in engine_settings() if name not in _OF_THE_COMMAND])
    staged = _properties([name for name in engine_settings() if owners()[name]])
    stage = {
        "stage_id": {"type": "integer", "minimum": 0, "description": "number of the stage; its place when absent"},
        "name": {"type": "string", "description": "name of the stage, as a check"},
        "engine_extras": _object(staged, "settings that win over those beside them"),
        **staged,
    }
    top = {
        "stages": {"type": "array", "items": _object(stage, "settings of one stage")},
        **wide,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "omnireel deploy file",
        **_object(top, "settings of an engine; a stage's own are below stages"),
    }


def _properties(names: list[str]) -> dict[str, Any]:
    found = {name: _property(engine_settings()[name]) for name in names}
    for item in list(found):
        for alias in engine_settings()[item].aliases:
            if not alias.startswith("!"):
                found[alias] = found[item]
    for section in SECTIONS:
        inner = {name: found[name] for name in members(section) if name in found}
        if inner:
            found[section] = _object(inner, GROUPS[SECTIONS[section]].title)
    return found


def _object(properties: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "properties": dict(properties),
        "additionalProperties": False,
    }


def _property(item: Setting) -> dict[str, Any]:
    found: dict[str, Any] = {"description": item.help + (f" [{item.unit}]" if item.unit else ""), **_TYPES[item.kind]}
    bounds = {"minimum": item.minimum, "maximum": item.maximum, "exclusiveMinimum": item.above}
    found |= {key: bound for key, bound in bounds.items() if bound is not None}
    if item.choices:
        found["enum"] = [*item.choices, *([None] if item.is_optional else [])]
    if item.is_optional:
        found["type"] = [found["type"], "null"]
    if item.default is not None:
        found["default"] = item.default
    return found
