"""The model in an actor of a Ray cluster, on whatever machine has the devices; the only file that knows Ray.

Ray places the worker, starts it and ends it. Messages go past Ray, over a TCP connection that the worker opens to the engine, so
that they are those of a local worker, as are the meaning of its death and its restart.
"""

from __future__ import annotations

import hmac
import importlib
import logging
import os
import secrets
import select
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from omnireel.engine.connectors.doorway import greeting
from omnireel.engine.executors.process import SEND_SECONDS, Patience, ProcessExecutor
from omnireel.engine.link import LinkClosed
from omnireel.engine.message import Kind, StageMessage
from omnireel.engine.recipe import versions
from omnireel.engine.stream import StreamLink
from omnireel.engine.worker import serve
from omnireel.errors import MissingPackage, SetupError

if TYPE_CHECKING:
    from omnireel.engine.build import WorkerSpec

logger = logging.getLogger(__name__)

INSTALL = "pip install 'omnireel[ray]'"
CONNECT_SECONDS = 20.0
"""How long a worker may take to reach the engine."""

_GREETING_SECONDS, _REACH_SECONDS = 2.0, 5.0
_KEY_BYTES = 64
_MAX_WORDS = 300
_TAKEN: Mapping[str, Mapping[str, float]] = {"cpu": {"CPU": 1}, "npu": {"NPU": 1}}
"""What a worker takes of a node for one device, by platform; a GPU elsewhere."""


def load_ray() -> Any:
    """The module.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingPackage("ray", "distributed_executor_backend = ray", INSTALL) from error


class RayExecutor(ProcessExecutor):
    """See `Executor`.

    Args:
        spec: what the worker builds.
        address: of the cluster; None for the one that this machine is a node of.
        resources: what the worker takes of a node, by Ray's names; None for one device.

    Raises:
        MissingPackage: Ray is not installed.
    """

    def __init__(
        self, spec: WorkerSpec, *, patience: Patience, address: str | None, resources: Mapping[str, float] | None
    ) -> None:
        load_ray()
        taken = dict(resources or _TAKEN.get(spec.context.platform.name, {"GPU": 1}))
        super().__init__(spec, patience=patience, launch=partial(_placed, spec, taken))
        self._address = address
        self._is_holding = False

    def start(self) -> None:
        """See `ProcessExecutor.start`.

        Raises:
            SetupError: there is no such cluster.
        """
        if not self._is_holding:
            _CONNECTION.hold(self._address)
            self._is_holding = True
        try:
            super().start()
        except BaseException:
            self._let_go()
            raise

    def close(self) -> None:
        """See `ProcessExecutor.close`; the last executor of this process leaves the cluster."""
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        if self._is_holding:
            self._is_holding = False
            _CONNECTION.release()


class RayWorker:
    """What the actor is made of."""

    def hello(self) -> tuple[int, str, str, str]:
        """Its process, its node's id, its machine's name and its version of the package."""
        node = str(load_ray().get_runtime_context().get_node_id())
        return os.getpid(), node, socket.gethostname(), versions()["omnireel"]

    def serve(self, host: str, port: int, key: str, kind: str) -> None:
        """A worker's whole life, at the engine that listens there; `kind` is its class."""
        end = socket.create_connection((host, port), CONNECT_SECONDS)
        end.sendall(key.encode())
        serve(StreamLink(end), kind)


class RayLink:
    """See `Link`: to an actor. While Ray has no place for it, it counts as alive: how long it may load is the limit.

    Args:
        name: the worker's.
        taken: what it takes of a node, by Ray's names.
        env: variables of its process.
        kind: class of the worker.
    """

    def __init__(self, name: str, taken: Mapping[str, float], env: Mapping[str, str], kind: str = "") -> None:
        self._ray = load_ray()
        host = self._ray.util.get_node_ip_address()
        self._name, self._taken = name, taken
        self._lock = threading.Lock()
        self._unsent: list[StageMessage] = []
        self._stream: StreamLink | None = None
        self._pid: int | None = None
        self._where = ""
        self._problem = ""
        self._key = secrets.token_hex(_KEY_BYTES // 2)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        try:
            self._actor = self._ray.remote(RayWorker).options(**_options(taken, env)).remote()
            self._greeting = self._actor.hello.remote()
            self._life = self._actor.serve.remote(host, self._listener.getsockname()[1], self._key, kind)
        except BaseException:
            self._listener.close()
            raise
        self._tell_lack()

    @property
    def pids(self) -> tuple[int, ...]:
        """See `Link.pids`."""
        return () if self._pid is None else (self._pid,)

    def send(self, message: StageMessage) -> None:
        """See `Wire.send`; what is sent before the worker is there waits for it."""
        with self._lock:
            stream = self._stream
            if stream is None:
                self._unsent.append(message)
                return
        stream.send(message)

    def receive(self, timeout_seconds: float) -> StageMessage | None:
        """See `Wire.receive`."""
        if self._stream is not None:
            return self._stream.receive(timeout_seconds)
        if not self._where and not self._greeted(timeout_seconds):
            return StageMessage(kind=Kind.PONG)
        self._join(timeout_seconds)
        return None

    def kill(self) -> None:
        """See `Link.kill`."""
        self._end()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.hang_up()

    def close(self, timeout_seconds: float) -> bool:
        """See `Link.close`."""
        # One that was never heard of does not know that it is to end.
        is_own = self._stream is not None and self._has_ended(timeout_seconds)
        self._problem = self._problem or self._cause(self._life)
        is_own = is_own or bool(self._problem)
        self._end()
        self._pid = None
        if self._stream is not None:
            self._stream.close()
        self._listener.close()
        return is_own

    def epitaph(self) -> tuple[str, tuple[str, ...]]:
        """See `Link.epitaph`. What it wrote is in Ray's log of its node, and in the engine's, where Ray copies it to."""
        if not self._where:
            return self._problem, (f"waiting for a node with {_listed(self._taken)}",)
        return f"{self._problem or 'ended by itself'} ({self._where}, where Ray keeps its log)", ()

    def _end(self) -> None:
        try:
            self._ray.kill(self._actor, no_restart=True)
        except Exception as error:  # noqa: BLE001 - a cluster that is gone has ended its actors
            logger.warning("Ray cannot end worker %s: %s", self._name, _first_line(error))

    def _greeted(self, timeout_seconds: float) -> bool:
        """Whether the actor runs."""
        if not self._ray.wait([self._greeting], timeout=timeout_seconds)[0]:
            return False
        self._problem = self._cause(self._greeting)
        if self._problem:
            raise LinkClosed(self._problem)
        pid, node, machine, version = self._ray.get(self._greeting)
        self._where = f"process {pid} of {machine}"
        if version != (own := versions()["omnireel"]):
            self._problem = f"has omnireel {version}, and this is {own}"
            raise LinkClosed(self._problem)
        if node == str(self._ray.get_runtime_context().get_node_id()):
            self._pid = pid
        logger.info("worker %s is %s", self._name, self._where)
        return True

    def _join(self, timeout_seconds: float) -> None:
        """Takes the connection that the worker opens."""
        if not select.select([self._listener], [], [], timeout_seconds)[0]:
            if self._has_ended(0):
                self._problem = self._cause(self._life)
                raise LinkClosed(self._problem)
            return
        end, _ = self._listener.accept()
        if not _is_known(end, self._key):
            logger.warning("somebody who is no worker of ours called and was hung up on")
            end.close()
            return
        stream = StreamLink(end, send_seconds=SEND_SECONDS)
        self._listener.close()
        with self._lock:
            self._stream = stream
            for message in self._unsent:
                stream.send(message)

    def _has_ended(self, timeout_seconds: float) -> bool:
        return bool(self._ray.wait([self._life], timeout=timeout_seconds)[0])

    def _cause(self, call: Any) -> str:
        """Why a call of the actor failed, in short; "" when it did not, or has not ended."""
        if not self._ray.wait([call], timeout=0)[0]:
            return ""
        try:
            self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            words = " ".join(str(error).split())
            # Ray begins with numbers and ends with advice.
            for begin in ("Worker exit detail: ", "The actor is dead because ", "creation task, "):
                words = words.rpartition(begin)[2]
            return words.partition(" Some common causes")[0][:_MAX_WORDS]
        return ""

    def _tell_lack(self) -> None:
        """A cluster may grow, so that this is no error."""
        there = self._ray.cluster_resources()
        lacking = {name: count for name, count in self._taken.items() if there.get(name, 0) < count}
        if lacking:
            logger.warning(
                "worker %s waits for a node with %s, which the cluster does not have", self._name, _listed(lacking)
            )


class _Connection:
    """This process's one connection to a cluster, for as long as somebody holds it.

    A thread of its own opens it and stays: in the main thread Ray would take the handler of SIGTERM, and nodes that it starts
    end with the thread that started them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._thread: threading.Thread | None = None
        self._left = threading.Event()

    def hold(self, address: str | None) -> None:
        """Raises SetupError where there is no such cluster."""
        with self._lock:
            # A program that uses Ray itself has a connection, and keeps it.
            if not self._holders and not load_ray().is_initialized():
                self._open(address or "auto")
            self._holders += 1

    def release(self) -> None:
        """The last one closes what `hold` opened."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                self._close()

    def _open(self, address: str) -> None:
        opened: Future[None] = Future()
        self._left.clear()
        self._thread = threading.Thread(target=partial(self._live, address, opened), name="omnireel-ray", daemon=True)
        self._thread.start()
        error = opened.exception()
        if error is not None:
            self._close()
            hint = "start one with `ray start --head`, join it with `ray start --address HOST:PORT`, or name it by --ray-address"
            raise SetupError(f"no Ray cluster answers at {address}: {_first_line(error)}", hint=hint) from error

    def _close(self) -> None:
        thread, self._thread = self._thread, None
        self._left.set()
        if thread is not None:
            thread.join()

    def _live(self, address: str, opened: Future[None]) -> None:
        ray = load_ray()
        try:
            _check_reachable(address)
            ray.init(address=address, **({"include_dashboard": False} if address == "local" else {}))
        except BaseException as error:  # noqa: BLE001 - who waits tells it
            opened.set_exception(error)
            return
        opened.set_result(None)
        self._left.wait()
        ray.shutdown()


_CONNECTION = _Connection()


def _check_reachable(address: str) -> None:
    """Raises OSError where nobody listens: Ray itself goes on trying for longer than anybody waits."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()


def _placed(spec: WorkerSpec, taken: Mapping[str, float]) -> RayLink:
    try:
        return RayLink(spec.name, taken, spec.env, spec.worker_cls)
    except Exception as error:
        # Ray says no in many types; a replica that is started again has to survive each.
        hint = "look at ray_resources, and at `ray status`"
        raise SetupError(f"Ray cannot place worker {spec.name}: {_first_line(error)}", hint=hint) from error


def _options(taken: Mapping[str, float], env: Mapping[str, str]) -> dict[str, Any]:
    """An actor's options: what Ray has names of its own for, and the rest."""
    rest = dict(taken)
    found: dict[str, Any] = {"num_cpus": rest.pop("CPU", 0), "num_gpus": rest.pop("GPU", 0)}
    if "memory" in rest:
        found["memory"] = rest.pop("memory")
    # Who drives decides about restarts and reruns.
    found |= {"resources": rest, "max_restarts": 0, "max_task_retries": 0}
    return {**found, "runtime_env": {"env_vars": dict(env)}} if env else found


def _is_known(end: socket.socket, key: str) -> bool:
    """Whether the caller says the key in time."""
    try:
        said = greeting(end, _KEY_BYTES, _GREETING_SECONDS)
    except OSError:
        return False
    return hmac.compare_digest(said, key.encode())


def _listed(taken: Mapping[str, float]) -> str:
    return ", ".join(f"{count:g} {name}" for name, count in taken.items())


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
