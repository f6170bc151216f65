"""Which executor runs each replica, by the settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from omnireel.engine.child import Child, EarlyChildren
from omnireel.engine.executors.inline import InlineExecutor
from omnireel.engine.executors.process import START_SECONDS, Patience, ProcessExecutor, SubprocessLink
from omnireel.errors import BadSetting, Incompatible, NotAvailable

if TYPE_CHECKING:
    from omnireel.config import ResolvedConfig
    from omnireel.engine.build import WorkerSpec
    from omnireel.engine.executors import Executor

_NAME = "distributed_executor_backend"


def build_executors(
    config: ResolvedConfig, specs: Sequence[WorkerSpec], *, default: str, early: EarlyChildren | None = None
) -> list[Executor]:
    """One for each replica, none started.

    Args:
        config: every setting.
        specs: what each replica is made of.
        default: the backend where none is set; several replicas need processes.
        early: processes that were started before and may be used.

    Raises:
        NotAvailable: the backend does not exist yet.
        Incompatible: several replicas were asked for in this one process.
        BadSetting: there are variables for a process, and none.
    """
    process = config.process
    backend = process.distributed_executor_backend
    if backend == "ray":
        raise NotAvailable(_NAME, backend, str(config.sources[_NAME]), "Ray")
    if backend == "uni" and len(specs) > 1:
        first, second = f"{_NAME} = uni (from {config.sources[_NAME]})", f"{len(specs)} replicas"
        raise Incompatible(first, second, "one process runs one copy of a model")
    is_here = (backend or (default if len(specs) == 1 else "mp")) == "uni"
    if is_here and specs[0].env:
        source = str(config.sources["env"])
        raise BadSetting("env", "***", source, "it is for models in processes of their own", hint=f"set {_NAME} to mp")
    if is_here:
        return [InlineExecutor(specs[0])]
    limits = [limit for limit in (process.stage_init_timeout, process.init_timeout) if limit is not None]
    patience = Patience(
        # All replicas load at the same time, so the time of all is the time of each.
        start=min(limits, default=START_SECONDS),
        silent=process.worker_timeout_seconds,
        step=process.step_timeout_seconds,
        batch=process.batch_timeout,
    )
    return [ProcessExecutor(spec, patience=patience, launch=partial(_launched, early, spec)) for spec in specs]


def _launched(early: EarlyChildren | None, spec: WorkerSpec) -> SubprocessLink:
    # Those that were started early have the variables of this process.
    return SubprocessLink(Child(spec.name, spec.env) if early is None or spec.env else early.take(spec.name))
