"""The progress line: drawn for a terminal, silent for everything else."""

import io
import sys
from contextlib import suppress

import pytest

from omnireel.observe.progress import ProgressBar, step_detail

HIDE_CURSOR = "\x1b[?25l"
SHOW_CURSOR = "\x1b[?25h"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def drawn(stream: io.StringIO, *, enabled: bool = True) -> str:
    with ProgressBar(enabled=enabled, stream=stream) as bar:
        bar.phase("loading toy")
        bar.update(1, 4, 0.5)
        bar.update(2, 4, 0.5)
    return stream.getvalue()


def test_a_pipe_gets_nothing():
    assert drawn(io.StringIO()) == ""


def test_forced_colour_does_not_make_a_pipe_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert drawn(io.StringIO()) == ""


def test_quiet_gets_nothing_on_a_terminal():
    assert drawn(Terminal(), enabled=False) == ""


def test_a_terminal_gets_steps_with_rate_and_time_left():
    text = drawn(Terminal())
    assert "step 2/4" in text
    assert "0.5 s/step, 0:01 left" in text


def test_no_color_is_honoured(monkeypatch):
    coloured = drawn(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    plain = drawn(Terminal())
    assert "\x1b[38" in coloured
    assert "\x1b[38" not in plain


def test_the_cursor_comes_back_after_an_error():
    stream = Terminal()
    with suppress(ValueError), ProgressBar(stream=stream) as bar:
        bar.phase("loading")
        raise ValueError
    text = stream.getvalue()
    assert text.rfind(SHOW_CURSOR) > text.rfind(HIDE_CURSOR) >= 0


def test_names_with_brackets_are_not_read_as_markup():
    stream = Terminal()
    with ProgressBar(stream=stream) as bar:
        bar.phase("loading [bold]dir[/bold]")
    assert "[bold]dir[/bold]" in stream.getvalue()


@pytest.mark.parametrize(
    ("rate", "left", "text"),
    [(0.5, 3, "0.5 s/step, 0:02 left"), (15.04, 49, "15 s/step, 12:17 left"), (100, 72, "100 s/step, 2:00:00 left")],
)
def test_time_left_is_the_mean_step_times_the_steps_left(rate, left, text):
    assert step_detail(rate, left) == text


def test_a_bar_may_be_drawn_again():
    stream = Terminal()
    bar = ProgressBar(stream=stream)
    for words in ("loading", "working"):
        with bar:
            bar.phase(words)
    assert "working" in stream.getvalue()


def test_stdout_stays_stdout_while_the_bar_is_drawn(capsys):
    stream = Terminal()
    with ProgressBar(stream=stream) as bar:
        bar.phase("loading")
        sys.stdout.write("data\n")
    assert capsys.readouterr().out == "data\n"
    assert "data" not in stream.getvalue()
