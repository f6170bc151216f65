"""What the executor asks of Ray, with actors that are processes of this machine: calls are recorded, deaths are real."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

_ACTOR = """
import json, sys, types
sys.path[:] = json.loads(sys.argv[1])
ray = types.ModuleType("ray")
ray.get_runtime_context = lambda: types.SimpleNamespace(get_node_id=lambda: sys.argv[2])
sys.modules["ray"] = ray
from omnireel.engine.executors.ray import RayWorker
worker = RayWorker()
for line in sys.stdin:
    name, arguments = json.loads(line)
    print(json.dumps(["answer", getattr(worker, name)(*arguments)]), flush=True)
"""


class RayError(Exception):
    """As Ray's."""


class Call:
    """What a call of an actor will come to."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.value: Any = None
        self.error: RayError | None = None


class Actor:
    """One process; calls run one after the other."""

    def __init__(self, node: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ACTOR, json.dumps(sys.path), node],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.calls: list[Call] = []
        self.is_killed = False
        threading.Thread(target=self._read, daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Call:
        call = Call()
        self.calls.append(call)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()
        return call

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                call = next(call for call in self.calls if not call.ended.is_set())
                call.value = json.loads(line)[1]
                call.ended.set()
        code = self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        why = "it was killed by `ray.kill`." if self.is_killed else f"its worker process has died. exit code {code}"
        for call in self.calls:
            if not call.ended.is_set():
                call.error = RayError(f"The actor died\n\tactor_id: 1\nThe actor is dead because {why}")
                call.ended.set()


class Pending:
    """An actor that no node has room for."""

    is_killed = False

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: Call())


class StandInRay:
    """The module. `total` is what the cluster has; `problem` is raised where somebody connects."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
        self.total: dict[str, float] = {"CPU": 64.0}
        self.problem: Exception | None = None
        self.inits: list[dict[str, Any]] = []
        self.init_threads: list[str] = []
        self.shutdowns = 0
        self.options: list[dict[str, Any]] = []
        self.actors: list[Actor | Pending] = []
        self.node = "node-1"

    def is_initialized(self) -> bool:
        return len(self.inits) > self.shutdowns

    def init(self, **options: Any) -> None:
        if self.problem is not None:
            raise self.problem
        self.inits.append(options)
        self.init_threads.append(threading.current_thread().name)

    def shutdown(self) -> None:
        self.shutdowns += 1

    def cluster_resources(self) -> dict[str, float]:
        return self.total

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "node-1")

    def remote(self, kind: type) -> Any:
        assert kind.__name__ == "RayWorker"
        return SimpleNamespace(options=self._placed)

    def _placed(self, **options: Any) -> Any:
        self.options.append(options)
        return SimpleNamespace(remote=self._made)

    def _made(self) -> Actor | Pending:
        taken = self.options[-1]
        fits = taken["num_cpus"] <= self.total.get("CPU", 0) and taken["num_gpus"] <= self.total.get("GPU", 0)
        self.actors.append(Actor(self.node) if fits else Pending())
        return self.actors[-1]

    def wait(self, calls: list[Call], *, timeout: float) -> tuple[list[Call], list[Call]]:
        calls[0].ended.wait(timeout)
        ended = [call for call in calls if call.ended.is_set()]
        return ended, [call for call in calls if call not in ended]

    def get(self, call: Call) -> Any:
        assert call.ended.wait(30)
        if call.error is not None:
            raise call.error
        return call.value

    def kill(self, actor: Actor | Pending, *, no_restart: bool) -> None:
        assert no_restart
        actor.is_killed = True
        if isinstance(actor, Actor):
            actor.process.kill()

    def pids(self) -> list[int]:
        """Processes of actors that are still there."""
        end = time.monotonic() + 5
        here = [actor.process for actor in self.actors if isinstance(actor, Actor)]
        while time.monotonic() < end and any(process.poll() is None for process in here):
            time.sleep(0.01)
        return [process.pid for process in here if process.poll() is None]
