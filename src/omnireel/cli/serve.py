"""`omnireel serve`: a model behind HTTP until a signal comes."""

from __future__ import annotations

import argparse

from omnireel.cli import show
from omnireel.cli.command import Command
from omnireel.cli.interrupts import check, deferred
from omnireel.cli.session import add_engine_flags, config_of
from omnireel.engine.child import early_children
from omnireel.errors import ClientError

_DESCRIPTION = """Serves a model over HTTP: the videos API of the OpenAI SDKs, and more.

The address is printed as soon as the server listens; it is ready when /health says so. SIGTERM and Ctrl-C stop it in
order: jobs that run get --abort-timeout seconds to finish, and whatever is left is run by the next server that is started
on the same --storage-path."""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("served", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument("--omni", action="store_true", help=argparse.SUPPRESS)
    add_engine_flags(parser, has_server=True)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.served is not None and "model" in arguments:
        raise ClientError("both MODEL and --model", hint="give the model once")
    config = config_of(arguments, {} if arguments.served is None else {"model": arguments.served})

    def listening(address: str) -> None:
        show.line(address)
        show.flush()

    def ready(address: str) -> None:
        name = config.model.model if len(config.stages) == 1 else config.topology.name
        show.note(f"{name} is ready at {address}")

    # Workers import their libraries while this process imports its own, which halves the time of a start.
    with early_children(config) as early:
        with deferred():
            from omnireel.observe.title import set_title
            from omnireel.server.run import serve
        check()
        set_title("serve", config.model.model)
        serve(config, on_listening=listening, on_ready=ready, early=early)
    return 0


COMMAND = Command(
    name="serve",
    summary="serve a model over HTTP",
    add_flags=_add_flags,
    run=_run,
    usage="[flags] [MODEL]",
    description=_DESCRIPTION,
)
