"""The engine: takes requests, runs them one after another on its own thread, and finishes files beside the next run.

Failure of one request never reaches another: every way a request can end is one event to its own listener.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import torch

from omnireel.engine.build import build_context, engine_facts
from omnireel.engine.executors.inline import InlineExecutor
from omnireel.engine.recipe import build_recipe
from omnireel.engine.result import GenerationResult
from omnireel.engine.scheduler import Scheduler
from omnireel.engine.ticket import Ticket
from omnireel.errors import EngineError, OmniReelError
from omnireel.media.encode import check_writable, write_clip
from omnireel.models.discover import admit
from omnireel.observe.log import request_scope

if TYPE_CHECKING:
    from omnireel.config import ResolvedConfig
    from omnireel.engine.executors import Executor
    from omnireel.engine.runner import RunReport
    from omnireel.engine.ticket import OnEvent
    from omnireel.models.protocol import Checkpoint
    from omnireel.request import GenerationRequest, Workload

logger = logging.getLogger(__name__)


class Engine:
    """One model, served in this process. Safe to use from any thread.

    Making one only reads small files, so that requests can be checked before weights are loaded by `start`.

    Raises:
        ClientError, SetupError: the model or the device of the config is not there.
    """

    def __init__(self, config: ResolvedConfig) -> None:
        self._config = config
        self._context, index = build_context(config)
        self._executor: Executor = InlineExecutor(self._context, device_index=index)
        self._scheduler = Scheduler(max_queue=config.run.max_queue)
        self._front = ThreadPoolExecutor(max_workers=1, thread_name_prefix="omnireel-front")
        self._thread = threading.Thread(target=self._loop, name="omnireel-engine", daemon=True)
        self._running: Ticket | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def checkpoint(self) -> Checkpoint:
        """The model that is served."""
        return self._context.checkpoint

    @property
    def weights_digest(self) -> str:
        """See `Pipeline.weights_digest`; known once started."""
        return self._executor.weights_digest

    def start(self) -> None:
        """Loads the model and begins to run requests.

        Raises:
            SetupError, OutOfMemory: the model cannot be loaded here.
        """
        if self._config.run.num_threads is not None:
            torch.set_num_threads(self._config.run.num_threads)
        self._executor.start()
        self._thread.start()

    def admit(self, request: GenerationRequest) -> Workload:
        """The request after the model's rules and a look at its output path; needs no weights.

        Raises:
            InvalidRequest: naming the field, the value and what is allowed.
        """
        if request.output.path is not None:
            check_writable(request.output.path)
        return admit(request, self.checkpoint)

    def submit(self, request: GenerationRequest, on_event: OnEvent) -> Ticket:
        """Puts a request in line. Every event goes to `on_event`, ending with one result or error; see `Ticket`.

        Raises:
            ClientError: the request is not allowed, or the line is full.
            EngineError: the engine is closed.
        """
        workload = self.admit(request)
        timeout = self._config.run.timeout_seconds if request.timeout_seconds is None else request.timeout_seconds
        deadline = None if timeout is None else time.monotonic() + timeout
        ticket = Ticket(workload, on_event, deadline=deadline)
        self._scheduler.submit(ticket)
        return ticket

    def close(self) -> None:
        """Cancels what waits and what runs (which ends with its step), finishes files, and gives the model back."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._scheduler.close()
        if self._running is not None:
            self._running.cancel()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._front.shutdown()
        self._executor.close()

    def _loop(self) -> None:
        try:
            while (ticket := self._scheduler.next()) is not None:
                self._running = ticket
                if self._is_closed:
                    ticket.cancel()
                self._run(ticket)
                self._running = None
        except BaseException:
            logger.exception("the engine's thread died")
            error = EngineError("the engine stopped on a bug", hint="start it again; the log has the details")
            if self._running is not None:
                self._running.finish(error)
            self._scheduler.close(reason=error)
            raise

    def _run(self, ticket: Ticket) -> None:
        waited = time.monotonic() - ticket.queued_at
        start = time.perf_counter()
        try:
            report = self._executor.execute(ticket, self._scheduler.expire)
        except OmniReelError as error:
            _log_failure(ticket, error)
            ticket.finish(error)
            return
        self._scheduler.measured(ticket.workload.cost, time.perf_counter() - start)
        self._front.submit(self._finish, ticket, report, waited)

    def _finish(self, ticket: Ticket, report: RunReport, waited: float) -> None:
        with request_scope(ticket.request_id, "mux"):
            try:
                result = self._result(ticket, report, waited)
            except OmniReelError as error:
                _log_failure(ticket, error)
                ticket.finish(error)
            except Exception:
                logger.exception("request %s failed in mux", ticket.request_id)
                ticket.finish(EngineError(f"request {ticket.request_id} failed while its file was written"))
            else:
                _log_success(result)
                ticket.finish(result)

    def _result(self, ticket: Ticket, report: RunReport, waited: float) -> GenerationResult:
        workload = ticket.workload
        durations = {"queue": waited, **report.durations}
        ticket.check("before mux")
        recipe = build_recipe(
            workload,
            report.output,
            model=self.checkpoint.name,
            weights_digest=self.weights_digest,
            engine=engine_facts(self._config, self._context),
        )
        encoded = None
        if workload.output.path is not None and report.output.frames is not None:
            written = recipe if workload.output.recipe else None
            encoded = write_clip(
                report.output,
                workload.output.path,
                recipe=written,
                check=partial(ticket.check, "while its file was written"),
            )
            durations["mux"] = encoded.seconds
        return GenerationResult(
            workload=workload,
            output=report.output,
            recipe=recipe,
            stage_durations=durations,
            peak_memory_mb=report.peak_memory_mb,
            encoded=encoded,
        )


def _log_success(result: GenerationResult) -> None:
    work = result.workload
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.stage_durations.items())
    size = f"{work.width}x{work.height}x{work.num_frames}"
    logger.info(
        "%s %s %s done: %s, peak %.2f GiB", work.request_id, work.task, size, spent, result.peak_memory_mb / 1024
    )


def _log_failure(ticket: Ticket, error: OmniReelError) -> None:
    level = logging.ERROR if error.exit_code == 4 else logging.INFO
    logger.log(level, "%s %s ended: %s", ticket.request_id, ticket.workload.task, error.code)
