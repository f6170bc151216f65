"""Which executor runs each replica, by the settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from omnireel.engine.child import Child, EarlyChildren
from omnireel.engine.custom import class_named
from omnireel.engine.executors.inline import InlineExecutor
from omnireel.engine.executors.process import START_SECONDS, Patience, ProcessExecutor, SubprocessLink
from omnireel.engine.executors.ray import RayExecutor
from omnireel.engine.group import GroupLink
from omnireel.engine.worker import Worker
from omnireel.errors import BadSetting, Incompatible

if TYPE_CHECKING:
    from omnireel.config import ResolvedConfig
    from omnireel.engine.build import WorkerSpec
    from omnireel.engine.executors import Executor
    from omnireel.engine.link import Link

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
        MissingPackage: Ray was asked for and is not installed.
        Incompatible: several replicas were asked for in this one process.
        BadSetting: there are variables or a class for a process, and none; no such class; a cluster or resources that Ray does not know.
    """
    process = config.process
    backend = process.distributed_executor_backend
    if backend == "uni" and len(specs) > 1:
        first, second = f"{_NAME} = uni (from {config.sources[_NAME]})", f"{len(specs)} replicas"
        raise Incompatible(first, second, "one process runs one copy of a model")
    is_alone = len(specs) == 1 and not specs[0].members
    is_here = (backend or (default if is_alone else "mp")) == "uni"
    for name, value, shown in (("env", specs[0].env, "***"), ("worker_cls", specs[0].worker_cls, specs[0].worker_cls)):
        if is_here and value:
            source, hint = str(config.sources[name]), f"set {_NAME} to mp"
            raise BadSetting(name, shown, source, "it is for models in processes of their own", hint=hint)
    if is_here:
        return [InlineExecutor(specs[0])]
    _check_worker(config, specs[0])
    limits = [limit for limit in (process.stage_init_timeout, process.init_timeout) if limit is not None]
    patience = Patience(
        # All replicas load at the same time, so the time of all is the time of each.
        start=min(limits, default=START_SECONDS),
        silent=process.worker_timeout_seconds,
        step=process.step_timeout_seconds,
        batch=process.batch_timeout,
    )
    if backend == "ray":
        return _by_ray(config, specs, patience)
    return [ProcessExecutor(spec, patience=patience, launch=partial(_launched, early, spec)) for spec in specs]


def _by_ray(config: ResolvedConfig, specs: Sequence[WorkerSpec], patience: Patience) -> list[Executor]:
    address, taken = config.process.ray_address, config.process.ray_resources
    if address is not None and "://" in address:
        allowed = "write HOST:PORT, auto or local; the engine runs on a node of the cluster, not at a client of it"
        raise BadSetting("ray_address", address, str(config.sources["ray_address"]), allowed)
    for name, count in (taken or {}).items():
        if isinstance(count, bool) or not isinstance(count, int | float) or not count >= 0:
            allowed = f"{name} must be a number from 0 on"
            raise BadSetting("ray_resources", count, str(config.sources["ray_resources"]), allowed)
    return [RayExecutor(spec, patience=patience, address=address, resources=taken) for spec in specs]


def _check_worker(config: ResolvedConfig, spec: WorkerSpec) -> None:
    """Before a process is started for a class that is not there."""
    try:
        class_named(spec.worker_cls, Worker, spec.context.checkpoint.path)
    except ValueError as error:
        source = str(config.sources["worker_cls"])
        raise BadSetting("worker_cls", spec.worker_cls, source, str(error)) from error


def _launched(early: EarlyChildren | None, spec: WorkerSpec) -> Link:
    if spec.members:
        return GroupLink(spec)
    # Those that were started early have the variables of this process, and the package's own class.
    if early is None or spec.env or spec.worker_cls:
        return SubprocessLink(Child(spec.name, spec.env, spec.worker_cls))
    return SubprocessLink(early.take(spec.name))
