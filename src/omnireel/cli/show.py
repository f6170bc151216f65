"""The one translation to the terminal: data to stdout, errors to stderr, as lines for people or as JSON.

An error is `error: ...`, an empty line and `hint: ...` on stderr. With --json the same error is also one object on
stdout, `{"error": {"code", "message", "hint", "details"}}`, so that a program needs to read only one stream.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omnireel.errors import OmniReelError, SetupError


def prepare_streams() -> None:
    """Makes every text printable: what a narrow locale cannot encode is written as an escape.

    A stream that was closed before the program began swallows what is written to it.
    """
    # Python has None there, and `print` takes None for stdout. What is opened lives as long as the process.
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextmanager
def _output() -> Iterator[None]:
    """Around everything that goes to stdout.

    Raises:
        BrokenPipeError: nobody reads it any more.
        SetupError: it cannot be written for another reason, such as a full disk.
    """
    try:
        yield
    except OSError as error:
        # The interpreter flushes stdout once more on its way out; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise SetupError(f"the output cannot be written ({error.strerror})") from None


def flush() -> None:
    """Makes sure that stdout has reached its reader; only then is it known whether there is one."""
    with _output():
        sys.stdout.flush()


def line(text: str) -> None:
    """One line of data."""
    with _output():
        print(text)


def path(file: Path) -> None:
    """One file name, byte for byte as the file system has it."""
    with _output():
        sys.stdout.flush()
        sys.stdout.buffer.write(os.fsencode(file) + b"\n")


def data(value: Any) -> None:
    """One JSON value on one line."""
    is_wide = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    line(json.dumps(value, ensure_ascii=not is_wide, allow_nan=False, default=str))


def name_of(file: Path) -> str:
    """A file name as text for JSON: what its bytes say in UTF-8, also where the locale could not read them."""
    return os.fsencode(file).decode("utf-8", "surrogateescape")


def table(rows: Iterable[Sequence[str]]) -> None:
    """Rows in columns as wide as their widest cell; the last column runs on."""
    cells = [list(row) for row in rows]
    if not cells:
        return
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]) - 1)]
    for row in cells:
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        line("  ".join([*padded, row[-1]]).rstrip())


def error(problem: OmniReelError, *, as_json: bool) -> None:
    """What went wrong and what to do."""
    failure(problem.message, problem.hint)
    if as_json:
        # Where nothing can be written the exit code has to do.
        with suppress(OSError, SetupError):
            data({"error": problem.to_dict()})
            flush()


def failure(message: str, hint: str = "") -> None:
    """The two lines of an error on stderr."""
    note(f"error: {message}")
    if hint:
        note(f"\nhint: {hint}")


def note(text: str) -> None:
    """A line on stderr, for a person, who need not be there any more."""
    with suppress(OSError):
        print(text, file=sys.stderr)
