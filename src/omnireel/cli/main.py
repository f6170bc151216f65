"""The `omnireel` command: finds the commands of this folder, runs one, and turns its end into an exit code.

0 done; 1 a bug; 2 the request or the command line is wrong; 3 the set-up is wrong; 4 the engine failed; 128 + n ended by
signal n (130 Ctrl-C, 143 SIGTERM, 141 nobody reads the output any more).
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import omnireel.cli
from omnireel.cli import show
from omnireel.cli.command import Command
from omnireel.cli.interrupts import Interrupts
from omnireel.cli.version import own_version
from omnireel.config.flags import as_dotted, is_truth, piece
from omnireel.errors import ClientError, EngineError, OmniReelError, nearest

_DESCRIPTION = "Makes pictures, video and sound with generative models."
_CANCELLED = OmniReelError.from_dict({"code": "cancelled", "message": "cancelled", "hint": "", "details": {}})
_BUG = EngineError(
    "this is a bug in omnireel",
    hint="please report it with the lines above and the command",
    details={"bug": True},
)
_EPILOG = "`omnireel COMMAND --help` tells more about a command."


def entry() -> int:
    """The console script; gives the exit code."""
    return main(sys.argv[1:])


def main(argv: Sequence[str]) -> int:
    """Runs one command line and gives its exit code; prints every error itself."""
    show.prepare_streams()
    as_json = "--json" in argv
    with Interrupts() as interrupts:
        try:
            return _run_to_the_last_byte(argv)
        except OmniReelError as error:
            show.error(error, as_json=as_json)
            return error.exit_code
        except KeyboardInterrupt:
            show.error(_CANCELLED, as_json=as_json)
            return interrupts.exit_code
        except BrokenPipeError:
            return 128 + signal.SIGPIPE
        except Exception:  # noqa: BLE001  the top loop of the program
            traceback.print_exc()
            show.error(_BUG, as_json=as_json)
            return 1


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; the reference page is generated from it too."""
    parser = _Parser(prog="omnireel", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=_Parser)
    for command in commands().values():
        child = parsers.add_parser(
            command.name,
            help=command.summary,
            description=command.description or command.summary,
            usage=f"omnireel {command.name} {command.usage}",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_flags(child)
    return parser


def commands() -> Mapping[str, Command]:
    """Every command by name: the COMMAND of each file in this folder that has one."""
    names = sorted(item.name for item in pkgutil.iter_modules(omnireel.cli.__path__) if not item.name.startswith("_"))
    modules = [vars(importlib.import_module(f"omnireel.cli.{name}")) for name in names]
    found = [module["COMMAND"] for module in modules if "COMMAND" in module]
    return {command.name: command for command in found}


def _run_to_the_last_byte(argv: Sequence[str]) -> int:
    """The exit code, once stdout has reached its reader."""
    try:
        return _run(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    finally:
        show.flush()


def _run(argv: Sequence[str]) -> int:
    parser = build_parser()
    if not argv:
        parser.print_help()
        return 0
    arguments, rest = parser.parse_known_args(_spelled(list(argv), parser))
    if rest:
        words = " ".join(rest)
        raise ClientError(f"unexpected words: {words}", hint="put a text of several words in quotes")
    return commands()[arguments.command].run(arguments)


class _Parser(argparse.ArgumentParser):
    """argparse whose complaints are our errors and whose --help ends the program as usual."""

    def error(self, message: str) -> NoReturn:
        raise ClientError(message.removeprefix("argument "), hint=f"see {self.prog} --help")


class _Version(argparse.Action):
    """Prints the version when it is asked for, not when the parser is built."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        show.line(f"omnireel {own_version()}")
        parser.exit()


def _spelled(argv: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """`argv` with dashes for underscores in flags and with `--flag=-1` for `--flag -1`; unknown words are errors."""
    spelled: list[str] = []
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        children = _children(parser)
        if token == "--":
            return [*spelled, token, *rest]
        if _is_flag(token):
            spelled.append(_flag(token, rest, parser))
        elif children:
            if token not in children:
                raise _unknown("command", token, children, parser)
            parser = children[token]
            spelled.append(token)
        else:
            spelled.append(token)
    return spelled


def _flag(token: str, rest: list[str], parser: argparse.ArgumentParser) -> str:
    """One flag as argparse wants it; takes its value from `rest` when that begins with a dash."""
    options = parser._option_string_actions
    name, equals, value = token.partition("=")
    if name.startswith("--"):
        name = name.replace("_", "-")
    dotted = as_dotted(name, options)
    if dotted and name not in options:
        flag, path, is_switch = dotted
        return f"{flag}={piece(path, _dotted_value(name, value if equals else None, rest, is_switch=is_switch))}"
    if name not in options:
        if name[:2] in options and not name.startswith("--"):
            return token
        shown = {flag: action for flag, action in options.items() if action.help != argparse.SUPPRESS}
        raise _unknown("flag", name, shown, parser)
    if value == "--":
        # argparse takes it for the mark behind which there are no flags, and the value is then an empty list.
        raise ClientError(f"{name}: -- is no value", hint="write ./-- for a file of that name")
    if equals or options[name].nargs == 0 or not rest:
        return name + equals + value
    following = rest[0]
    if _is_flag(following) and not following.startswith("--") and following not in options:
        return f"{name}={rest.pop(0)}"
    return name


def _dotted_value(name: str, value: str | None, rest: list[str], *, is_switch: bool) -> str | None:
    """The value of a part of a mapping, taken from `rest` where it is not there; None for a switch without one."""
    if value is not None:
        return value
    if rest and (is_truth(rest[0]) if is_switch else not _is_flag(rest[0]) or _is_negative(rest[0])):
        return rest.pop(0)
    if is_switch:
        return None
    raise ClientError(f"{name}: expected one argument", hint="write its value behind it")


def _is_negative(token: str) -> bool:
    return token[1:2].isdigit()


def _is_flag(token: str) -> bool:
    return token.startswith("-") and token != "-" and " " not in token.partition("=")[0]


def _children(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def _unknown(kind: str, name: str, valid: Mapping[str, Any], parser: argparse.ArgumentParser) -> ClientError:
    close = _meant(name, valid)
    if name.startswith("--stage-") and not (close or "").startswith("--stage-"):
        # One with a number is no unknown flag, whatever its setting.
        return ClientError(f"unknown {kind} {name}", hint="a setting of one stage is --stage-N-NAME, with its number N")
    return ClientError(
        f"unknown {kind} {name}", hint=f"did you mean {close}?" if close else f"see {parser.prog} --help"
    )


def _meant(name: str, valid: Mapping[str, Any]) -> str | None:
    """The word of `valid` that `name` is a part of, for abbreviations, else the one that is spelled most like it."""
    words = {word.lstrip("-"): word for word in valid if len(word) > 2}
    bare = name.lstrip("-")
    longer = [word for word in words if len(bare) > 2 and bare in word]
    close = nearest(bare, longer) or min(longer, key=len, default=None) or nearest(bare, words)
    return None if close is None else words[close]
