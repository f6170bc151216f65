"""Where a prompt comes from, and that it is text."""

import argparse
import io
import sys

import pytest

from omnireel.cli.prompt import MAX_BYTES, prompt_of
from omnireel.errors import ClientError, InvalidRequest


def arguments(prompt=None, prompt_file=None):
    return argparse.Namespace(prompt=prompt, prompt_file=prompt_file)


def feed(monkeypatch, content: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))


def test_a_word_is_the_prompt():
    assert prompt_of(arguments("a kite")) == "a kite"


def test_a_dash_reads_stdin_as_utf8_whatever_the_locale(monkeypatch):
    feed(monkeypatch, "风筝\n".encode())
    assert prompt_of(arguments("-")) == "风筝"


def test_a_file_is_read_without_its_mark_and_its_last_line_end(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbfone\ntwo\r\n")
    assert prompt_of(arguments(prompt_file=str(file))) == "one\ntwo"


def test_bytes_that_the_locale_could_not_read_are_read_as_utf8():
    word = "é".encode().decode("ascii", "surrogateescape")
    assert prompt_of(arguments(word)) == "é"


@pytest.mark.parametrize("given", [{}, {"prompt": "a", "prompt_file": "b"}])
def test_there_is_exactly_one_prompt(given):
    with pytest.raises(ClientError):
        prompt_of(arguments(**given))


def test_a_missing_file_is_named():
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(arguments(prompt_file="/no/such/file"))
    assert caught.value.details["field"] == "prompt_file"


@pytest.mark.parametrize("word", [b"caf\xe9".decode("utf-8", "surrogateescape")])
def test_a_word_that_is_not_utf8_is_refused(word):
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(arguments(word))
    assert caught.value.details["field"] == "prompt"


def test_stdin_that_is_not_utf8_is_refused(monkeypatch):
    feed(monkeypatch, b"\xff\xfe")
    with pytest.raises(InvalidRequest):
        prompt_of(arguments("-"))


def test_a_closed_stdin_holds_no_prompt(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ClientError, match="closed"):
        prompt_of(arguments("-"))


def test_what_never_ends_is_not_read_to_its_end(monkeypatch):
    with pytest.raises(InvalidRequest, match=r"prompt_file: .*no model reads so much"):
        prompt_of(arguments(prompt_file="/dev/zero"))
    feed(monkeypatch, b"x" * (MAX_BYTES + 1))
    with pytest.raises(InvalidRequest, match=r"prompt: .*no model reads so much"):
        prompt_of(arguments("-"))
    feed(monkeypatch, b"x" * MAX_BYTES)
    assert len(prompt_of(arguments("-"))) == MAX_BYTES
