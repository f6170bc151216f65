"""`omnireel config`: every setting with the place it came from, and deploy files checked without starting anything."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omnireel.cli import show
from omnireel.cli.command import Command
from omnireel.cli.session import add_engine_flags, config_of
from omnireel.config import ResolvedConfig, Source, StageConfig, all_settings, deploy_schema, engine_settings, resolve
from omnireel.errors import OmniReelError, SetupError
from omnireel.models.discover import topology_of
from omnireel.observe.env import environment

_SHOW = "show every setting of the engine with the place its value came from"
_CHECK = "check a deploy file without starting anything; exit code 0: it is sound, 3: it is not, with every reason"
_SCHEMA = "print the JSON schema of deploy files"


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_help_of(parser))
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", prog="omnireel config")
    listing = actions.add_parser(
        "show", help=_SHOW, description=_SHOW, usage="omnireel config show [flags]", allow_abbrev=False
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object, settings by name")
    add_engine_flags(listing, has_server=True)
    listing.set_defaults(run=_show)
    check = actions.add_parser(
        "check", help=_CHECK, description=_CHECK, usage="omnireel config check [flags] FILE", allow_abbrev=False
    )
    check.add_argument("file", metavar="FILE", help="the deploy file")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(run=_check)
    schema = actions.add_parser(
        "schema", help=_SCHEMA, description=_SCHEMA, usage="omnireel config schema", allow_abbrev=False
    )
    schema.set_defaults(run=_schema)


def _run(arguments: argparse.Namespace) -> int:
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _help_of(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        show.line(parser.format_help().rstrip())
        return 0

    return run


def _show(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    if arguments.json:
        stages = [_stage_data(stage) for stage in config.stages]
        show.data({"settings": _data(config.values, config.sources), "stages": stages})
        return 0
    show.table([("setting", "value", "source"), *_rows(config.values, config.sources)])
    if len(config.stages) > 1:
        for stage in config.stages:
            show.line(f"\nstage {stage.number} ({stage.facts.name}, {stage.facts.execution_type})")
            show.table(_rows(*_own(stage, config)))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    problems: list[OmniReelError] = []
    resolve({"deploy_config": Path(arguments.file)}, environment(), topology=topology_of, on_problem=problems.append)
    if arguments.json:
        show.data({"file": arguments.file, "problems": [problem.to_dict() for problem in problems]})
    else:
        for problem in problems:
            show.failure(problem.message, problem.hint)
        show.line(f"{arguments.file}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
    return SetupError.exit_code if problems else 0


def _schema(_: argparse.Namespace) -> int:
    show.data(deploy_schema())
    return 0


def _own(stage: StageConfig, config: ResolvedConfig) -> tuple[dict[str, Any], dict[str, Source]]:
    """What of a stage is not as the pipeline has it."""
    own = [name for name, source in stage.sources.items() if source != config.sources[name]]
    return {name: stage.values[name] for name in own}, {name: stage.sources[name] for name in own}


def _stage_data(stage: StageConfig) -> dict[str, Any]:
    kind = str(stage.facts.execution_type)
    settings = _data(stage.values, stage.sources)
    return {"stage_id": stage.number, "name": stage.facts.name, "execution_type": kind, "settings": settings}


def _data(values: Mapping[str, Any], sources: Mapping[str, Source]) -> dict[str, Any]:
    return {
        name: {
            "value": _told(name, values[name]),
            "source": {"kind": sources[name].kind, "name": sources[name].name},
        }
        for name in _shown_names(sources)
    }


def _rows(values: Mapping[str, Any], sources: Mapping[str, Source]) -> list[tuple[str, str, str]]:
    return [
        (name, "-" if values[name] is None else str(_told(name, values[name])), str(sources[name]))
        for name in _shown_names(sources)
    ]


def _told(name: str, value: Any) -> Any:
    """A value without secrets, also those that it holds for single stages."""
    if name == "stage_overrides" and value is not None:
        return {
            number: {key: _told(key.replace("-", "_"), item) for key, item in said.items()}
            for number, said in value.items()
        }
    return all_settings()[name].told(value) if name in all_settings() else value


def _shown_names(sources: Mapping[str, Source]) -> list[str]:
    """What can be set, and what else was said."""
    said = ("topology", "environment", "deploy", "flag", "stage flag")
    return [name for name, source in sources.items() if name in engine_settings() or source.kind in said]


COMMAND = Command(
    name="config",
    summary="show every setting with the place it came from, or check a deploy file",
    add_flags=_add_flags,
    run=_run,
    usage="ACTION [flags]",
)
