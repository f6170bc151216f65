"""`omnireel config show`: every setting of the engine, its value and the place it came from."""

from __future__ import annotations

import argparse

from omnireel.cli import show
from omnireel.cli.command import Command
from omnireel.cli.session import add_engine_flags, config_of


def _add_flags(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        title="actions", metavar="ACTION", dest="action", required=True, prog="omnireel config"
    )
    summary = "show every setting of the engine with the place its value came from"
    listing = actions.add_parser(
        "show", help=summary, description=summary, usage="omnireel config show [flags]", allow_abbrev=False
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object, settings by name")
    add_engine_flags(listing)


def _run(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    if arguments.json:
        show.data(
            {
                name: {"value": config.values[name], "source": {"kind": source.kind, "name": source.name}}
                for name, source in config.sources.items()
            }
        )
        return 0
    rows = [(name, _shown(config.values[name]), str(source)) for name, source in config.sources.items()]
    show.table([("setting", "value", "source"), *rows])
    return 0


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


COMMAND = Command(
    name="config",
    summary="show every setting with the place it came from",
    add_flags=_add_flags,
    run=_run,
    usage="ACTION [flags]",
)
