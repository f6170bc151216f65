"""Command line flags generated from dataclass fields.

A flag that nobody typed is absent from the namespace, so that "not said" and "said to be the default" stay different.
The parser hands on raw text; `config.values.convert` gives it its type, once it is known whose mistake a bad value is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Mapping
from typing import Any

from omnireel.config.groups import GROUPS, SECTIONS, all_settings, names
from omnireel.config.values import Setting, convert, settings_of, truth
from omnireel.config.written import put_together
from omnireel.errors import InvalidRequest
from omnireel.request import DiffusionSamplingParams


def add_fields(parser: argparse.ArgumentParser, spec: type, *, title: str, skip: Collection[str] = ()) -> None:
    """Adds one flag for each field of `spec` that is not in `skip`, as a group of the help text."""
    group = parser.add_argument_group(title)
    for setting in settings_of(spec):
        if setting.name not in skip:
            _add(group, setting)


def add_settings(parser: argparse.ArgumentParser, *, leave_out: Collection[str] = ()) -> None:
    """Adds the flags of every setting of an engine. A name that the parser has already stays what it was.

    leave_out: names of GROUPS that the command has no use for.

    Flags of features that do not exist yet are not in the help text; typing one is answered by `resolve`.
    """
    taken = [action.dest for action in parser._actions]
    for name, group in GROUPS.items():
        if name not in leave_out:
            add_fields(parser, group.spec, title=group.title, skip=taken)
    for section in SECTIONS:
        flag = "--" + section.replace("_", "-")
        parser.add_argument(flag, action="append", default=argparse.SUPPRESS, dest=section, help=argparse.SUPPRESS)
    parser.set_defaults(**{_TAKEN: frozenset(taken)})


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was typed for the settings of an engine."""
    typed = vars(arguments)
    found = {name: typed[name] for name in all_settings() if name in typed and name not in typed[_TAKEN]}
    sections = {name: typed[name] for name in SECTIONS if name in typed}
    return {name: _whole(value) for name, value in (found | sections).items()}


def given(arguments: argparse.Namespace, spec: type) -> dict[str, Any]:
    """What was typed for the fields of `spec`: raw text, or a bool for a switch; one mapping of the pieces of a dotted flag."""
    typed = vars(arguments)
    return {setting.name: _whole(typed[setting.name]) for setting in settings_of(spec) if setting.name in typed}


def as_dotted(name: str, options: Mapping[str, argparse.Action]) -> tuple[str, str, bool] | None:
    """A flag that names a part of a mapping: the mapping's own flag, the part, and whether it is a switch.

    `--cache-config.threshold` is ".threshold" of --cache-config, `--stage-0-no-recipe` the switch ".0.no_recipe" of
    --stage-overrides. None for any other flag.
    """
    staged = _STAGE_FLAG.fullmatch(name)
    if staged and "--stage-overrides" in options:
        field = staged[2].replace("-", "_")
        return "--stage-overrides", f".{staged[1]}.{field}", _is_switch(field.rpartition(".")[2])
    whole, dot, path = name.partition(".")
    if dot and path and whole in options and isinstance(options[whole], argparse._AppendAction):
        return whole, f".{path}", whole[2:].replace("-", "_") in SECTIONS and _is_switch(path.replace("-", "_"))
    return None


def piece(path: str, value: str | None) -> str:
    """One piece of a mapping as its flag takes it; None turns a switch on, or off where its name begins with no_."""
    if value is not None:
        return f"{path}={value}"
    head, _, field = path.rpartition(".")
    bare = field.replace("-", "_")
    is_off = bare not in names() and bare.startswith("no_")
    return f"{head}.{bare.removeprefix('no_') if is_off else bare}={'false' if is_off else 'true'}"


def is_truth(text: str) -> bool:
    """Whether a word can only be the value of a switch."""
    return text.lower() in ("true", "false") and truth(text) is not None


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
    text = argparse.SUPPRESS if setting.pending else _help(setting)
    flags = [setting.flag, *("--" + name.replace("_", "-") for name in setting.aliases if not name.startswith("!"))]
    common: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": setting.name, "help": text}
    if setting.kind is bool:
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, **common)
        opposites = ["--" + name[1:].replace("_", "-") for name in setting.aliases if name.startswith("!")]
        if opposites:
            group.add_argument(*opposites, action="store_false", **common)
        return
    common["metavar"] = setting.metavar or "|".join(setting.choices) or _METAVARS[setting.kind]
    # Pieces of a mapping may come one by one.
    group.add_argument(*flags, action="append" if setting.kind is Mapping else "store", **common)


def _whole(value: Any) -> Any:
    return put_together(value) if isinstance(value, list) else value


def _is_switch(field: str) -> bool:
    name, _ = names().get(field, names().get(field.removeprefix("no_"), ("", False)))
    return bool(name) and all_settings()[name].kind is bool


def _help(setting: Setting) -> str:
    unit = f" [{setting.unit}]" if setting.unit else ""
    default = "" if setting.default is None else f" (default: {_shown(setting.default)})"
    return (setting.help + unit + default).replace("%", "%%")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_METAVARS = {int: "N", float: "X", str: "TEXT", Mapping: "JSON", tuple: "A,B"}
_STAGE_FLAG = re.compile(r"--stage-(\d+)-(.+)")
_TAKEN = "_not_settings"
"""Where a parser notes the names that are not settings of an engine although one is called so, such as a request's seed."""
