"""Workers that Ray places: the same clips, deaths and limits as workers of this machine, and no actor that stays.

A stand-in takes Ray's place but for the last test: its actors are processes, so that what dies here really dies.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import threading

import pytest
from tests.support.engines import Heard, request
from tests.support.processes import alive, until
from tests.support.standin_ray import StandInRay

from omnireel.config import resolve
from omnireel.engine.build import worker_specs
from omnireel.engine.executors import ray as module
from omnireel.engine.executors.process import Patience
from omnireel.engine.executors.ray import RayExecutor, RayLink
from omnireel.errors import Cancelled, EngineError, MissingPackage, SetupError, WorkerDied

pytestmark = pytest.mark.slow

SLOW = {"step_seconds": 0.05}
QUICK = {"distributed_executor_backend": "ray", "worker_timeout_seconds": 1.0, "num_threads": 1}


@pytest.fixture
def cluster(monkeypatch) -> StandInRay:
    ray = StandInRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def submitted(engine, prompt="a kite", **values):
    heard = Heard()
    heard.ticket = engine.submit(request(prompt, **values), heard)
    return heard


def pid_of(engine) -> int:
    pid = engine.health.replicas[0].pid
    assert isinstance(pid, int)
    return pid


def executor(patience: Patience | None = None, resources=None, **flags) -> RayExecutor:
    spec = worker_specs(resolve({"model": "toy", "device": "cpu", **flags}, {}))[0]
    return RayExecutor(spec, patience=patience or Patience(), address=None, resources=resources)


def test_an_actor_makes_the_clip_that_this_process_makes_and_is_gone_afterwards(cluster, start):
    asked = {"seed": 7, "height": 256, "width": 256, "num_frames": 24}
    here = submitted(start(num_threads=1), **asked).result()
    engine = start(**QUICK)
    heard = submitted(engine, **asked)
    there = heard.result()
    assert there.recipe.frames_digest == here.recipe.frames_digest
    assert there.recipe.wave_digest == here.recipe.wave_digest
    assert there.recipe.engine == here.recipe.engine
    assert [event.index for event in heard.steps] == [1, 2, 3, 4]
    assert pid_of(engine) == cluster.actors[0].process.pid
    engine.close()
    assert cluster.pids() == []
    assert (len(cluster.inits), cluster.shutdowns) == (1, 1)


def test_what_is_asked_of_ray(cluster):
    taken = {"GPU": 0, "CPU": 2, "memory": 1e9, "H200": 0.5}
    one = executor(resources=taken, env={"OF_ONE": "own"})
    one.start()
    one.close()
    assert cluster.inits == [{"address": "auto"}]
    # Where Ray is opened it takes over SIGTERM, if it can.
    assert cluster.init_threads == ["omnireel-ray"]
    assert cluster.options == [
        {
            "num_cpus": 2,
            "num_gpus": 0,
            "memory": 1e9,
            "resources": {"H200": 0.5},
            "max_restarts": 0,
            "max_task_retries": 0,
            "runtime_env": {"env_vars": {"OF_ONE": "own"}},
        }
    ]


def test_a_cpu_takes_one_core_unless_told(cluster):
    one = executor()
    one.start()
    one.close()
    assert (cluster.options[0]["num_cpus"], cluster.options[0]["num_gpus"]) == (1, 0)


def test_a_program_that_uses_ray_itself_keeps_its_connection(cluster):
    cluster.init(address="its own")
    one = executor()
    one.start()
    one.close()
    assert (len(cluster.inits), cluster.shutdowns) == (1, 0)


def test_a_killed_actor_fails_its_request_and_another_one_takes_its_place(cluster, start):
    engine = start(**QUICK, num_replicas=2)
    both = [submitted(engine, extra_args=SLOW, num_inference_steps=20) for _ in range(2)]
    until(lambda: all(heard.steps for heard in both))
    pid = pid_of(engine)
    os.kill(pid, signal.SIGKILL)
    last = [heard.last() for heard in both]
    assert sorted(isinstance(one, WorkerDied) for one in last) == [False, True]
    told = next(one for one in last if isinstance(one, WorkerDied))
    assert f"its worker process has died. exit code -9 (process {pid} of {socket.gethostname()}" in told.message
    until(lambda: [replica.restarts for replica in engine.health.replicas] == [1, 0] and engine.health.is_ready)
    submitted(engine).result()
    engine.close()
    assert cluster.pids() == []
    assert len(cluster.inits) == cluster.shutdowns == 1


def test_a_stopped_actor_is_killed_and_its_request_runs_again(cluster, start):
    engine = start(**QUICK, rerun_interrupted=True)
    heard = submitted(engine, seed=3, extra_args=SLOW)
    until(lambda: heard.steps)
    pid = pid_of(engine)
    os.kill(pid, signal.SIGSTOP)
    heard.result()
    assert heard.ticket.runs == 2
    assert not alive(pid)


def test_cancelling_reaches_an_actor(cluster, start):
    engine = start(**QUICK)
    heard = submitted(engine, extra_args=SLOW, num_inference_steps=100)
    until(lambda: len(heard.steps) == 2)
    heard.ticket.cancel()
    assert isinstance(heard.error(), Cancelled)
    assert len(heard.steps) <= 4


def test_an_actor_ends_when_its_engine_is_gone(cluster):
    one = executor()
    one.start()
    (pid,), link = one.pids, one._link
    assert isinstance(link, RayLink)
    assert pid is not None
    assert link._stream is not None
    link._stream.hang_up()
    until(lambda: not alive(pid))
    with pytest.raises(WorkerDied):
        one.check(0.5)
    one.close()


def test_what_no_node_has_is_waited_for_as_long_as_loading_may_take(cluster, caplog):
    one = executor(Patience(start=0.6, silent=0.1), resources={"GPU": 1})
    with pytest.raises(WorkerDied, match=r"did not load its model in 0\.6 s.*waiting for a node with 1 GPU"):
        one.start()
    assert "waits for a node with 1 GPU" in caplog.text
    assert cluster.actors[0].is_killed
    assert cluster.shutdowns == 1


def test_waiting_for_a_node_can_be_ended(cluster):
    one = executor(resources={"GPU": 1})
    problems: list[BaseException] = []

    def begin() -> None:
        try:
            one.start()
        except WorkerDied as error:
            problems.append(error)

    thread = threading.Thread(target=begin)
    thread.start()
    until(lambda: cluster.actors)
    one.kill()
    thread.join(10)
    assert len(problems) == 1
    assert cluster.actors[0].is_killed


def test_what_ray_will_not_place_is_told(cluster, monkeypatch):
    def refuse(self, **options):
        raise ValueError("GPU resource quantities >1 must be whole numbers.\nmore")

    monkeypatch.setattr(StandInRay, "_placed", refuse)
    with pytest.raises(
        SetupError, match=r"Ray cannot place worker 0: GPU resource quantities >1 must be whole numbers\.$"
    ):
        executor(resources={"GPU": 1.5}).start()
    assert cluster.shutdowns == 1


def test_a_cluster_that_is_gone_does_not_keep_an_executor_from_closing(cluster, monkeypatch, caplog):
    def fail(actor, *, no_restart):
        raise RuntimeError("no cluster")

    one = executor()
    one.start()
    monkeypatch.setattr(cluster, "kill", fail)
    one.close()
    assert "Ray cannot end worker 0: no cluster" in caplog.text
    cluster.actors[0].process.kill()


def test_a_node_with_another_version_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(module, "versions", lambda: {"omnireel": "9.9"})
    with pytest.raises(WorkerDied, match=r"has omnireel \S+, and this is 9\.9"):
        executor().start()
    assert cluster.pids() == []


def test_a_worker_of_another_machine_has_no_process_here(cluster):
    cluster.node = "node-2"
    one = executor()
    one.start()
    assert one.pids == ()
    one.close()


def test_who_does_not_know_the_key_is_hung_up_on(cluster, monkeypatch):
    monkeypatch.setattr(module, "_GREETING_SECONDS", 0.2)
    link = RayLink("0", {"CPU": 1}, {})
    with socket.create_connection(link._listener.getsockname()) as stranger:
        stranger.sendall(b"x" * 64)
        until(lambda: link.receive(0.1) is None and link._stream is not None)
        assert stranger.recv(1) == b""
    link.kill()
    link.close(5)
    assert cluster.pids() == []


def test_no_cluster_is_told_with_what_to_do(cluster):
    cluster.problem = ConnectionError("Could not find any running Ray instance.\nmore")
    with pytest.raises(
        SetupError, match=r"no Ray cluster answers at auto: Could not find any running Ray instance\.$"
    ) as told:
        executor().start()
    assert "ray start --head" in told.value.hint
    assert not [thread for thread in threading.enumerate() if thread.name == "omnireel-ray"]


def test_an_address_where_nobody_listens_is_told_before_ray_tries_it(cluster):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spec = worker_specs(resolve({"model": "toy", "device": "cpu"}, {}))[0]
    one = RayExecutor(spec, patience=Patience(), address=f"127.0.0.1:{port}", resources=None)
    with pytest.raises(SetupError, match=f"no Ray cluster answers at 127.0.0.1:{port}"):
        one.start()
    assert cluster.inits == []


def test_without_ray_the_line_that_installs_it_is_told_before_anything_loads(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackage) as told:
        executor()
    assert told.value.hint == "pip install 'omnireel[ray]'"


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.filterwarnings("ignore")
def test_a_real_cluster_of_this_machine_runs_two_actors_and_leaves_none(start, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    handler = signal.getsignal(signal.SIGTERM)
    here = submitted(start(num_threads=1), seed=7).result()
    engine = start(**QUICK, num_replicas=2, ray_address="local")
    assert submitted(engine, seed=7).result().recipe.frames_digest == here.recipe.frames_digest
    heard = submitted(engine, extra_args=SLOW, num_inference_steps=100)
    until(lambda: heard.steps)
    pids = [replica.pid for replica in engine.health.replicas]
    os.kill(next(replica.pid for replica in engine.health.replicas if replica.running), signal.SIGKILL)
    assert isinstance(heard.error(), EngineError)
    until(lambda: sum(replica.restarts for replica in engine.health.replicas) == 1 and engine.health.is_ready)
    pids += [replica.pid for replica in engine.health.replicas]
    engine.close()
    until(lambda: not any(alive(pid) for pid in pids))
    assert signal.getsignal(signal.SIGTERM) is handler
