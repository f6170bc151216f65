"""What goes to which stream, and how."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from omnireel.cli import show
from omnireel.errors import InvalidRequest

ERROR = InvalidRequest("seed", "x", "a whole number", hint="leave it out")


def test_an_error_is_two_lines_on_stderr_and_nothing_on_stdout(capsys):
    show.error(ERROR, as_json=False)
    assert capsys.readouterr() == ("", f"error: {ERROR.message}\n\nhint: leave it out\n")


def test_an_error_without_a_hint_is_one_line(capsys):
    show.failure("cancelled")
    assert capsys.readouterr().err == "error: cancelled\n"


def test_with_json_the_error_is_an_object_on_stdout_too(capsys):
    show.error(ERROR, as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["details"]["field"] == "seed"
    assert err.startswith("error: ")


def test_a_table_has_columns_as_wide_as_their_widest_cell(capsys):
    show.table([("name", "value"), ("long name", "1"), ("x", "")])
    assert capsys.readouterr().out == "name       value\nlong name  1\nx\n"


def test_an_empty_table_prints_nothing(capsys):
    show.table([])
    assert capsys.readouterr().out == ""


def narrow_stdout(monkeypatch):
    """Puts an ASCII-only stdout in place and gives what reads back its bytes."""
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    show.prepare_streams()

    def written() -> bytes:
        stream.flush()
        return content.getvalue()

    return written


def test_a_narrow_locale_gets_escapes(monkeypatch):
    written = narrow_stdout(monkeypatch)
    show.line("é")
    assert written() == b"\\xe9\n"


def test_json_for_a_narrow_locale_is_ascii(monkeypatch):
    written = narrow_stdout(monkeypatch)
    show.data({"prompt": "é"})
    assert written() == b'{"prompt": "\\u00e9"}\n'


def test_a_file_name_is_written_byte_for_byte(monkeypatch):
    written = narrow_stdout(monkeypatch)
    show.line("first")
    show.path(Path(os.fsdecode(b"caf\xe9.mp4")))
    assert written() == b"first\ncaf\xe9.mp4\n"


def test_json_refuses_what_is_not_json():
    with pytest.raises(ValueError, match="not JSON compliant"):
        show.data({"x": float("nan")})


def test_a_file_name_in_json_is_its_bytes_read_as_utf8():
    assert show.name_of(Path(os.fsdecode("é.mp4".encode()))) == "é.mp4"


def test_streams_that_were_closed_before_the_start_swallow_what_is_written(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    show.prepare_streams()
    with sys.stdout, sys.stderr:
        show.note("to nobody")
        show.path(Path("a.mp4"))
        show.flush()
        assert not sys.stderr.isatty()


def test_an_error_that_cannot_be_written_anywhere_raises_nothing(monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

        def fileno(self):
            return os.open(os.devnull, os.O_WRONLY)

    out = Full()
    monkeypatch.setattr(sys, "stderr", Full())
    monkeypatch.setattr(sys, "stdout", out)
    show.error(ERROR, as_json=True)
    assert out.getvalue() == ""
