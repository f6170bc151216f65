"""A worker's life is tied to its engine's by the kernel, where it can be: also one that is stopped ends with its engine.

A closed socket tells a worker that its engine is gone, but only one that runs hears it. Nothing here needs torch, so that
the tie is there before a worker imports it.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1


def tie(parent: int) -> None:
    """Has the kernel kill this process when the thread that started it ends; ends it now if its parent is gone already.

    Linux alone has this; elsewhere nothing happens.

    Args:
        parent: process that started this one.
    """
    if sys.platform != "linux":
        return
    # May fail under a filter of system calls, or in a program of its own making; the socket is then all that ties the two.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # Who starts interpreters by a program that stays between them has another parent, but is there.
    if os.getppid() != parent and not _is_there(parent):
        # It ended before the kernel was asked, and would not be told of again.
        os._exit(1)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class Starter(Generic[T]):
    """Starts processes on one thread that lives as long as this process: the kernel takes the end of the thread that started
    a process for the end of its parent, and threads that load or restart a model end before it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: queue.SimpleQueue[tuple[Callable[[], T], Future[T]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if hasattr(os, "register_at_fork"):
            # A fork has neither the thread nor, perhaps, whoever held the lock.
            os.register_at_fork(after_in_child=self._begin)

    def start(self, launch: Callable[[], T]) -> T:
        """What `launch` gives or raises, called on that thread."""
        answer: Future[T] = Future()
        with self._lock:
            if self._thread is None:
                # A daemon: it is there until the interpreter has closed every engine, and keeps nobody from ending.
                self._thread = threading.Thread(target=self._loop, name="omnireel-starter", daemon=True)
                self._thread.start()
        self._asked.put((launch, answer))
        return answer.result()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._asked = queue.SimpleQueue()
        self._thread = None

    def _loop(self) -> None:
        asked = self._asked
        while True:
            launch, answer = asked.get()
            try:
                answer.set_result(launch())
            except BaseException as error:  # noqa: BLE001 - who asked is told
                answer.set_exception(error)
            # Else what was started last stays in memory.
            del launch, answer
