"""Command line flags generated from dataclass fields.

A flag that nobody typed is absent from the namespace, so that "not said" and "said to be the default" stay different.
The parser hands on raw text; `config.values.convert` gives it its type, once it is known whose mistake a bad value is.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from omnireel.config.values import Setting, convert, settings_of
from omnireel.errors import InvalidRequest
from omnireel.request import DiffusionSamplingParams


def add_fields(parser: argparse.ArgumentParser, spec: type, *, title: str, skip: Collection[str] = ()) -> None:
    """Adds one flag for each field of `spec` that is not in `skip`, as a group of the help text."""
    group = parser.add_argument_group(title)
    for setting in settings_of(spec):
        if setting.name not in skip:
            _add(group, setting)


def given(arguments: argparse.Namespace, spec: type) -> dict[str, Any]:
    """What was typed for the fields of `spec`: raw text, or a bool for a switch."""
    typed = vars(arguments)
    return {setting.name: typed[setting.name] for setting in settings_of(spec) if setting.name in typed}


def converted(spec: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` by field name of `spec`, as the fields' types.

    Raises:
        InvalidRequest: naming the field, the value and what is allowed.
    """
    known = {setting.name: setting for setting in settings_of(spec)}
    return {name: _request_value(known[name], value) for name, value in values.items()}


def sampling_params(values: Mapping[str, Any]) -> DiffusionSamplingParams:
    """Sampling parameters out of raw values by field name.

    Raises:
        InvalidRequest: naming the field, the value and what is allowed.
    """
    return DiffusionSamplingParams(**converted(DiffusionSamplingParams, values))


def _request_value(setting: Setting, value: Any) -> Any:
    try:
        return convert(setting, value)
    except ValueError as error:
        raise InvalidRequest(setting.name, value, str(error)) from None


def _add(group: argparse._ArgumentGroup, setting: Setting) -> None:
    text = _help(setting)
    if setting.kind is bool:
        group.add_argument(
            setting.flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, dest=setting.name, help=text
        )
        return
    metavar = setting.metavar or "|".join(setting.choices) or _METAVARS[setting.kind]
    group.add_argument(setting.flag, default=argparse.SUPPRESS, dest=setting.name, metavar=metavar, help=text)


def _help(setting: Setting) -> str:
    unit = f" [{setting.unit}]" if setting.unit else ""
    default = "" if setting.default is None else f" (default: {_shown(setting.default)})"
    return (setting.help + unit + default).replace("%", "%%")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_METAVARS = {int: "N", float: "X", str: "TEXT"}
