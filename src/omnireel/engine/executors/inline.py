"""The model in this process, run on the engine's own thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from omnireel.engine.runner import Runner, RunReport
from omnireel.errors import EngineError
from omnireel.models.discover import load_pipeline

if TYPE_CHECKING:
    from omnireel.engine.ticket import Ticket
    from omnireel.models.protocol import BuildContext

logger = logging.getLogger(__name__)


class InlineExecutor:
    """See `Executor`."""

    def __init__(self, context: BuildContext, *, device_index: int) -> None:
        self._context = context
        self._index = device_index
        self._runner: Runner | None = None
        self._digest = ""

    @property
    def weights_digest(self) -> str:
        """See `Executor.weights_digest`."""
        return self._digest

    def start(self) -> None:
        """Loads the pipeline; memory that runs out while loading is told as such."""
        start = time.perf_counter()
        platform = self._context.platform
        try:
            pipeline = load_pipeline(self._context)
        except (RuntimeError, MemoryError) as error:
            typed = platform.out_of_memory(error, "loading the model", self._index)
            if typed is None:
                raise
            typed.hint = "use a device with more memory, or a smaller number type (--dtype bfloat16)"
            raise typed from error
        self._digest = pipeline.weights_digest
        self._runner = Runner(pipeline, platform, self._index, is_profiled=self._context.is_profiled)
        name, seconds = self._context.checkpoint.name, time.perf_counter() - start
        logger.info("%s is ready on %s (%s) after %.1f s", name, self._context.device, self._context.dtype, seconds)

    def execute(self, ticket: Ticket, between: Callable[[], None]) -> RunReport:
        """See `Executor.execute`."""
        if self._runner is None:
            raise EngineError("the executor is not started")
        return self._runner.run(ticket, between)

    def close(self) -> None:
        """Lets the pipeline go."""
        if self._runner is not None:
            self._runner = None
            self._context.platform.release_memory(self._index)
