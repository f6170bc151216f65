"""A worker's process as this one sees it: started, heard and ended.

Nothing here needs torch, so that a worker can import it while this process still does.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from omnireel.engine.tether import Starter
from omnireel.observe.env import environment

if TYPE_CHECKING:
    from omnireel.config import ResolvedConfig

_LAST_LINES, _MAX_CHARACTERS = 20, 1000
_REAP_SECONDS = 10.0
"""How long a killed process may take to end; one in a driver that hangs does not."""
logger = logging.getLogger(__name__)

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from omnireel.engine.tether import tie; tie(int(sys.argv[3])); "
    "from omnireel.engine.worker import main; main(int(sys.argv[1]), sys.argv[4])"
)


_STARTER: Starter[subprocess.Popen[str]] = Starter()


class Child:
    """A fresh interpreter that waits at the other end of `socket` for what to load; see `engine.worker`.

    What it writes goes to stderr, line by line. `env` are variables beside, or instead of, those of this process; `kind` is
    the class of the worker, where it is not the package's own; it has the descriptors `fds` too, under their numbers.
    """

    def __init__(
        self, name: str, env: Mapping[str, str] | None = None, kind: str = "", fds: Sequence[int] = ()
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        with theirs:
            words = [str(theirs.fileno()), json.dumps(sys.path), str(os.getpid()), kind]
            launch = partial(
                subprocess.Popen[str],
                [sys.executable, "-c", _START, *words],
                pass_fds=(theirs.fileno(), *fds),
                env={**environment(), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Its own session: a Ctrl-C of the terminal is for the engine, which ends its workers in order.
                start_new_session=True,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
            self._process = _STARTER.start(launch)
        self._pump = threading.Thread(target=self._copy, name=f"omnireel-worker-{name}-log", daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def kill(self) -> None:
        """Ends it at once, whatever it does."""
        self._process.kill()

    def close(self, timeout_seconds: float) -> bool:
        """Waits for its own end, kills it after that time, and gives everything back; True if it ended itself."""
        is_own = True
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            is_own = False
            self._process.kill()
            try:
                self._process.wait(_REAP_SECONDS)
            except subprocess.TimeoutExpired:
                logger.error("process %d was killed and does not end", self._process.pid)
        # A child of the worker may hold the pipe open; its lines are not waited for.
        self._pump.join(1.0)
        self.socket.close()
        return is_own

    def epitaph(self) -> tuple[str, tuple[str, ...]]:
        """How it ended, in words, and the last lines that it wrote."""
        return _ended(self._process.returncode), tuple(self._lines)

    def _copy(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.append(line.rstrip("\n")[:_MAX_CHARACTERS])
                # As it is: a log line names its rank itself, and may be JSON. Who no longer reads what this process says does
                # not keep a worker from going on, which would end on a pipe that nobody empties.
                with suppress(OSError, ValueError, AttributeError):
                    sys.stderr.write(line)


class EarlyChildren:
    """Processes that were started before it was known what they are for; those that nobody took end with the block."""

    def __init__(self, count: int) -> None:
        self._children = deque(Child(str(number)) for number in range(count))

    def __enter__(self) -> EarlyChildren:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = [self._children.popleft() for _ in range(len(self._children))]
        for child in left:
            child.kill()
        for child in left:
            child.close(1.0)

    def take(self, name: str) -> Child:
        """One of them, or a new one when there is none left."""
        try:
            return self._children.popleft()
        except IndexError:
            return Child(name)


def early_children(config: ResolvedConfig) -> EarlyChildren:
    """As many as a service with these settings will need; of pipelines of several stages each starts its own."""
    process = config.process
    is_apart = process.distributed_executor_backend in (None, "mp") and not process.env and not process.worker_cls
    # Ranks are given what they find each other by when they start.
    is_early = is_apart and len(config.stages) == 1 and num_ranks(config) == 1
    return EarlyChildren(num_replicas(config) if is_early else 0)


def num_replicas(config: ResolvedConfig) -> int:
    """Copies of the model."""
    return config.process.num_replicas * (config.parallel.data_parallel_size or 1)


def num_ranks(config: ResolvedConfig) -> int:
    """Processes of one copy, in a pipeline of one stage."""
    return config.stages[0].parallel.num_ranks


def _ended(code: int | None) -> str:
    if code is None:
        return "was killed and does not end"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} (the kernel sends it when memory runs out)" if name == "SIGKILL" else name
