"""A progress line for a person at a terminal: phases, steps, seconds a step, time left.

Drawn on stderr and only when that is a terminal; piped, redirected or asked to be quiet, nothing is written at all.
rich honours NO_COLOR by itself and is imported only when there is something to draw.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressBar:
    """Draws one thing at a time; use as a context manager, so that the cursor comes back whatever happens.

    Not thread-safe: one thread calls it. May be entered again; outside of it, and where there is no terminal, every
    method does nothing. What others print meanwhile goes where they sent it.
    """

    def __init__(self, *, enabled: bool = True, stream: TextIO | None = None) -> None:
        """stream: where to draw instead of stderr; it must say of itself that it is a terminal."""
        self._stream = sys.stderr if stream is None else stream
        self.is_drawn = enabled and self._stream.isatty()
        self._drawing: Progress | None = None
        self._task: TaskID | None = None
        self._seconds = 0.0
        self._steps = 0

    def __enter__(self) -> ProgressBar:
        if self.is_drawn:
            self._drawing = _drawing(self._stream)
            self._drawing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawing is not None:
            self._drawing.stop()
            self._drawing, self._task = None, None

    def phase(self, words: str) -> None:
        """Shows what is going on while its length is not known: "loading mini-h3", "decoding"."""
        self._steps, self._seconds = 0, 0.0
        if self._drawing is not None:
            if self._task is not None:
                self._drawing.remove_task(self._task)
            self._task = self._drawing.add_task(words, total=None, detail="")

    def update(self, index: int, total: int, seconds: float) -> None:
        """Shows that step `index` (from 1) of `total` is done and took `seconds`."""
        self._steps += 1
        self._seconds += seconds
        if self._drawing is None:
            return
        if self._task is None:
            self._task = self._drawing.add_task("", total=None, detail="")
        self._drawing.update(
            self._task,
            description=f"step {index}/{total}",
            total=total,
            completed=index,
            detail=step_detail(self._seconds / self._steps, total - index),
        )


def step_detail(seconds_per_step: float, steps_left: int) -> str:
    """The figures behind the bar: "0.52 s/step, 0:24 left"."""
    left = round(seconds_per_step * steps_left)
    hours, minutes, seconds = left // 3600, left // 60 % 60, left % 60
    clock = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    return f"{seconds_per_step:.3g} s/step, {clock} left"


def _drawing(stream: TextIO) -> Progress:
    # rich takes a tenth of a second to import.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
