"""Traces of an engine: one file a process that computes, named by stage and replica, in a folder that the settings name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from typing import TYPE_CHECKING

from omnireel.errors import Conflict, EngineError, OmniReelError
from omnireel.observe.trace import TraceOrder

if TYPE_CHECKING:
    from omnireel.engine.replicas import Lane

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 120.0
"""How long processes are waited for; writing a trace of many steps takes a while."""


class Traces:
    """Starts and stops traces. Safe to use from any thread.

    Args:
        folder: where they go; None where nobody may ask for them.
        max_seconds: time after which a trace ends by itself.
        lanes: whose executors are traced.
    """

    def __init__(self, folder: Path | None, max_seconds: float, lanes: Sequence[Lane]) -> None:
        self._folder = folder
        self._max_seconds = max_seconds
        self._lanes = lanes
        self._is_on = False
        self._lock = threading.Lock()

    def check(self, *, is_on: bool) -> None:
        """Whether traces may be started, or stopped.

        Raises:
            Conflict: there is no folder for them, or they are under way, or not.
        """
        if self._folder is None:
            hint = "start it with --torch-profiler-dir DIR"
            raise Conflict("this engine has no folder for traces", hint=hint)
        if self._is_on == is_on:
            raise Conflict("a profile is under way already" if is_on else "no profile is under way")

    def start(self) -> None:
        """Begins to record every replica.

        Raises:
            Conflict: see `check`.
            EngineError: a replica cannot; none records then.
        """
        with self._lock:
            self.check(is_on=True)
            assert self._folder is not None
            asked = [
                lane.executor.profile(
                    TraceOrder(folder=self._folder, name=f"trace-{lane.spec.name}", max_seconds=self._max_seconds)
                )
                for lane in self._lanes
            ]
            try:
                for answer in asked:
                    _answered(answer)
            except OmniReelError:
                for lane in self._lanes:
                    lane.executor.profile(None)
                raise
            self._is_on = True

    def stop(self) -> tuple[Path, ...]:
        """Ends the recording; the files that were written, which lie on the machines of the replicas.

        A replica that was started anew meanwhile has none.

        Raises:
            Conflict: see `check`.
            EngineError: no replica could write one.
        """
        with self._lock:
            self.check(is_on=False)
            self._is_on = False
            asked = [lane.executor.profile(None) for lane in self._lanes]
            found: list[Path] = []
            failure: OmniReelError | None = None
            for lane, answer in zip(self._lanes, asked, strict=True):
                try:
                    found += _answered(answer)
                except OmniReelError as error:
                    failure = error
                    logger.warning("no trace of replica %s: %s", lane.name, error.message)
            if failure is not None and not found:
                raise failure
            return tuple(found)


def _answered(answer: Future[tuple[Path, ...]]) -> tuple[Path, ...]:
    try:
        return answer.result(ANSWER_SECONDS)
    except NotInTime:
        raise EngineError(f"a worker did not answer in {ANSWER_SECONDS:g} s") from None
