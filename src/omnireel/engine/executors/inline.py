"""The model in this process, run on the thread that asks."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from omnireel.engine.build import engine_facts
from omnireel.engine.runner import Runner
from omnireel.errors import EngineError, OmniReelError
from omnireel.models.discover import imported, load_pipeline
from omnireel.observe.trace import Tracer

if TYPE_CHECKING:
    from pathlib import Path

    from omnireel.engine.build import WorkerSpec
    from omnireel.engine.executors import Feed
    from omnireel.engine.ticket import Ticket
    from omnireel.observe.trace import TraceOrder

logger = logging.getLogger(__name__)


class InlineExecutor:
    """See `Executor`."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._context = spec.context
        self._index = spec.device_index
        self._runner: Runner | None = None
        self._digest = ""
        self._tracer = Tracer()

    @property
    def weights_digest(self) -> str:
        """See `Executor.weights_digest`."""
        return self._digest

    @property
    def is_here(self) -> bool:
        """It does."""
        return True

    @property
    def pids(self) -> tuple[int, ...]:
        """This process."""
        return (os.getpid(),)

    def facts(self) -> Mapping[str, Any]:
        """See `Executor.facts`."""
        return engine_facts(self._spec)

    def start(self) -> None:
        """Loads the pipeline; memory that runs out while loading is told as such."""
        start = time.perf_counter()
        platform = self._context.platform
        try:
            with platform.use(self._index):
                pipeline = load_pipeline(self._context)
        except (RuntimeError, MemoryError) as error:
            typed = platform.out_of_memory(error, "loading the model", self._index)
            if typed is None:
                raise
            typed.hint = "use a device with more memory, or a smaller number type (--dtype bfloat16)"
            raise typed from error
        self._digest = pipeline.weights_digest
        chunks = self._context.chunk_processor
        self._runner = Runner(
            pipeline,
            platform,
            self._index,
            max_batch=self._spec.max_batch,
            is_profiled=self._context.is_profiled,
            chunk_processor=imported(chunks) if chunks else None,
            ranks=self._context.ranks,
            is_decode_shared=self._context.is_decode_shared,
        )
        name, seconds = self._context.checkpoint.name, time.perf_counter() - start
        logger.info("%s is ready on %s (%s) after %.1f s", name, self._context.device, self._context.dtype, seconds)

    def execute(self, tickets: Sequence[Ticket], feed: Feed) -> None:
        """See `Executor.execute`."""
        if self._runner is None:
            raise EngineError("the executor is not started")
        with self._context.platform.use(self._index):
            self._runner.run(tickets, feed)

    def check(self, waited_seconds: float) -> None:
        """It is where this process is."""

    def profile(self, order: TraceOrder | None) -> Future[tuple[Path, ...]]:
        """See `Executor.profile`; done when it returns."""
        done: Future[tuple[Path, ...]] = Future()
        try:
            path = None
            if order is None:
                path = self._tracer.stop()
            else:
                self._tracer.start(order)
        except OmniReelError as error:
            done.set_exception(error)
        else:
            done.set_result(() if path is None else (path,))
        return done

    def kill(self) -> None:
        """A step in this process cannot be ended."""

    def close(self) -> None:
        """Lets the pipeline go."""
        self._tracer.close()
        if self._runner is not None:
            self._runner = None
            self._context.platform.release_memory(self._index)
