"""Dispatch, spelling of flags, exit codes, and a start-up that imports nothing heavy."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import omnireel.cli.main as program
from omnireel.cli.command import Command
from omnireel.cli.main import build_parser, commands, main
from omnireel.errors import InvalidRequest, OutOfMemory, SetupError

HEAVY = ("torch", "numpy", "transformers", "diffusers", "av", "PIL", "rich", "accelerate", "safetensors")
FLAGS = Path(__file__).with_name("flags.txt")


@dataclass
class Trial:
    """The one command of a test: what it was given, and what it does."""

    given: list[dict[str, Any]] = field(default_factory=list)
    run: Callable[[], int] = lambda: 0

    def command(self) -> Command:
        return Command(name="try", summary="tries", add_flags=self._add_flags, run=self._run)

    @staticmethod
    def _add_flags(parser):
        parser.add_argument("words", nargs="?")
        parser.add_argument("--json", action="store_true")
        parser.add_argument("--num-frames")
        parser.add_argument("-o", "--output")

    def _run(self, arguments):
        self.given.append(vars(arguments))
        return self.run()


@pytest.fixture
def trial(monkeypatch):
    """A program whose only command is `try`."""
    it = Trial()
    monkeypatch.setattr(program, "commands", lambda: {"try": it.command()})
    return it


def raising(error: BaseException) -> Callable[[], int]:
    def run():
        raise error

    return run


@pytest.mark.parametrize(
    "argv",
    [
        ["--num-frames", "107"],
        ["--num_frames", "107"],
        ["--num-frames=107"],
        ["--num_frames=107"],
    ],
)
def test_dashes_and_underscores_and_equals_are_the_same(trial, argv):
    assert main(["try", *argv]) == 0
    assert trial.given[0]["num_frames"] == "107"


@pytest.mark.parametrize("value", ["-1", "-1.5e3", "-inf", "-.5"])
def test_a_negative_number_is_a_value(trial, value):
    main(["try", "--num-frames", value, "--json"])
    assert trial.given[0]["num_frames"] == value


def test_underscores_in_values_stay(trial):
    main(["try", "--output=--a_b.mp4", "-o", "c_d"])
    assert trial.given[0]["output"] == "c_d"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["a kite"], "a kite"),
        (["-"], "-"),
        (["- a kite"], "- a kite"),
        (["--json", "--", "--num_frames"], "--num_frames"),
        (["--num-frames", "1", "a kite"], "a kite"),
        (["-oclip.mp4", "a kite"], "a kite"),
    ],
)
def test_a_prompt_may_look_like_anything(trial, argv, words):
    assert main(["try", *argv]) == 0
    assert trial.given[0]["words"] == words


@pytest.mark.parametrize(
    ("argv", "line", "hint"),
    [
        (["tri"], "unknown command tri", "did you mean try?"),
        (["zzz"], "unknown command zzz", "see omnireel --help"),
        (["try", "--num-frame", "1"], "unknown flag --num-frame", "did you mean --num-frames?"),
        (["try", "--num"], "unknown flag --num", "did you mean --num-frames?"),
        (["try", "--frames", "1"], "unknown flag --frames", "did you mean --num-frames?"),
        (
            ["try", "--stage-x-dtype", "a"],
            "unknown flag --stage-x-dtype",
            "a setting of one stage is --stage-N-NAME, with its number N",
        ),
        (["try", "-z"], "unknown flag -z", "see omnireel try --help"),
        (["try", "--num-frames"], "--num-frames: expected one argument", "see omnireel try --help"),
        (["try", "--num-frames", "--json"], "--num-frames: expected one argument", "see omnireel try --help"),
        (["try", "--json=1"], "--json: ignored explicit argument '1'", "see omnireel try --help"),
        (["try", "a", "red", "kite"], "unexpected words: red kite", "put a text of several words in quotes"),
    ],
)
def test_a_word_that_is_not_known_is_an_error_with_a_way_out(trial, capsys, argv, line, hint):
    assert main(argv) == 2
    assert capsys.readouterr().err == f"error: {line}\n\nhint: {hint}\n"
    assert not trial.given


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("seed", "x", "a whole number"), 2),
        (SetupError("no disk"), 3),
        (OutOfMemory("decode", None, None), 4),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (ValueError("odd"), 1),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, BaseException) else None,
)
def test_each_kind_of_end_has_its_exit_code(trial, error, code):
    trial.run = raising(error)
    assert main(["try"]) == code


def test_only_a_bug_shows_a_traceback(trial, capsys):
    trial.run = raising(ValueError("odd"))
    main(["try"])
    bug = capsys.readouterr().err
    trial.run = raising(SetupError("no disk"))
    main(["try"])
    assert "Traceback" in bug
    assert "please report it" in bug
    assert "Traceback" not in capsys.readouterr().err


def test_json_puts_the_error_on_stdout(trial, capsys):
    trial.run = raising(SetupError("no disk", hint="buy one"))
    main(["try", "--json"])
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "setup_error"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_command_with_its_own_code(trial, capsys, signum, code):
    def run():
        os.kill(os.getpid(), signum)
        return 0

    trial.run = run
    assert main(["try", "--json"]) == code
    out, err = capsys.readouterr()
    assert err == "error: cancelled\n"
    assert json.loads(out)["error"]["code"] == "cancelled"


def test_no_command_shows_the_help(capsys):
    assert main([]) == 0
    assert "commands:" in capsys.readouterr().out


def test_every_command_is_found():
    assert sorted(commands()) == ["config", "doctor", "generate", "models", "reproduce", "serve"]


def test_flags_are_as_decided():
    """A new flag is a decision: it is written into flags.txt by hand."""
    found = [f"{' '.join(path)} {flag}" for path, parser in _parsers(build_parser(), ()) for flag in _flags(parser)]
    assert found == FLAGS.read_text().splitlines()


def _parsers(parser, path):
    yield path or ("-",), parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for name, child in action.choices.items():
                yield from _parsers(child, (*path, name))


def _flags(parser):
    """Those in the help text; flags of what does not exist yet are answered by an error."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return sorted(name for action in shown for name in action.option_strings if "--help" not in name)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.defpath},
        timeout=30,
    )


@pytest.mark.parametrize("argv", [["--help"], ["generate", "--help"], ["config", "show", "--json"], ["--nope"]])
def test_nothing_heavy_is_imported_before_there_is_work(argv):
    code = (
        "import sys; from omnireel.cli.main import main; main(sys.argv[1:]);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    assert run_python(code, *argv).stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("argv", ["'--help'", "'config', 'show'"])
def test_a_reader_that_goes_away_is_no_traceback(argv):
    code = f"import sys; from omnireel.cli.main import main; sys.exit(main([{argv}]))"
    shell = f'"{sys.executable}" -c "{code}"'
    script = f"( sleep 0.05; exec {shell} ) | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]},
    )
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_full_disk_behind_stdout_is_no_bug():
    code = "import sys; from omnireel.cli.main import main; sys.exit(main(['config', 'show']))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.defpath},
        )
    assert (done.returncode, done.stderr) == (3, "error: the output cannot be written (No space left on device)\n")


def test_two_dashes_are_no_value_of_a_flag(trial, capsys):
    assert main(["try", "--num-frames=--"]) == 2
    assert capsys.readouterr().err.startswith("error: --num-frames: -- is no value")
    assert trial.given == []
