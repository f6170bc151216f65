"""One thread beside the engine's own, on which finished clips are written while the next request runs."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_WAITING = 1
"""Jobs that may wait. Each holds a whole clip in memory, so a slow disk slows the engine down rather than filling it."""


class Front:
    """Runs jobs one after another, for one thread that hands them over. A job must not raise: nobody but the log would hear of it."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(MAX_WAITING)
        # A daemon, as a program that forgot to close its engine should still be able to end.
        self._thread = threading.Thread(target=self._loop, name="omnireel-front", daemon=True)

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is a job."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Begins to take jobs."""
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Hands a job over; waits while MAX_WAITING others do."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Ends the thread after the jobs that it has; no job is put afterwards."""
        self._jobs.put(None)

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the thread's end after `stop`; False when it takes longer."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:
                # The next one is another's.
                logger.exception("a job beside the engine failed")
            # Else the clip stays in memory until the next one comes.
            del job
