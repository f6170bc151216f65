"""The prompt of a command line: a word of it, a file, or stdin; always UTF-8, whatever the locale says."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from omnireel.errors import ClientError, InvalidRequest

MAX_BYTES = 1 << 20
"""Of a prompt that is read: what never ends, such as a device, is not read to its end."""


def add_prompt_flags(parser: argparse.ArgumentParser) -> None:
    """PROMPT and --prompt-file."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="what to show and to hear; - reads it from stdin")
    parser.add_argument("--prompt-file", metavar="FILE", help="read the prompt from this UTF-8 text file")


def prompt_of(arguments: argparse.Namespace) -> str:
    """The prompt's text; line ends at its end are not part of it.

    Raises:
        ClientError: no prompt, or two.
        InvalidRequest: it cannot be read, or is not UTF-8.
    """
    if (arguments.prompt is None) == (arguments.prompt_file is None):
        problem = "no prompt" if arguments.prompt is None else "both PROMPT and --prompt-file"
        raise ClientError(problem, hint='give one prompt: omnireel generate "a red kite over a harbour"')
    if arguments.prompt_file is not None:
        return _decoded("prompt_file", _content(Path(arguments.prompt_file)))
    if arguments.prompt == "-":
        if sys.stdin is None:
            raise ClientError("no prompt: stdin is closed")
        return _decoded("prompt", sys.stdin.buffer.read(MAX_BYTES + 1))
    # A word that the locale could not read holds its bytes as surrogates; UTF-8 may still be what they are.
    return _decoded("prompt", os.fsencode(arguments.prompt)) if _has_surrogates(arguments.prompt) else arguments.prompt


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRequest("prompt_file", str(file), f"it cannot be read ({error.strerror})") from None


def _decoded(field: str, content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise InvalidRequest(field, f"{MAX_BYTES} bytes and more", "no model reads so much")
    try:
        return content.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            field, content[error.start : error.end], f"text in UTF-8, byte {error.start} is not"
        ) from None


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)
