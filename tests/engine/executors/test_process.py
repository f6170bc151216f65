"""The model in a process of its own: the same clips, and no crash, hang or leak that the engine does not see and mend."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.engines import Heard, TakingFeed, engine_of, request, ticket
from tests.support.links import ThreadLink
from tests.support.processes import alive, until

from omnireel.config import resolve
from omnireel.engine.build import worker_specs
from omnireel.engine.child import Child
from omnireel.engine.executors.process import Patience, ProcessExecutor, SubprocessLink
from omnireel.engine.link import LinkClosed
from omnireel.engine.message import Kind, StageMessage
from omnireel.errors import BadCheckpoint, Cancelled, DeadlineExceeded, EngineError, OutOfMemory, WorkerDied

pytestmark = pytest.mark.slow

SLOW = {"step_seconds": 0.05}
QUICK = {"distributed_executor_backend": "mp", "worker_timeout_seconds": 1.0}


def submitted(engine, prompt="a kite", **values):
    heard = Heard()
    heard.ticket = engine.submit(request(prompt, **values), heard)
    return heard


def mapping_of(array) -> str:
    """What the system says of the memory that an array begins in."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= array.ctypes.data < end:
            return line
    raise AssertionError("no mapping")


def pid_of(engine) -> int:
    pid = engine.health.replicas[0].pid
    assert isinstance(pid, int)
    return pid


def executor(patience: Patience | None = None, **flags) -> ProcessExecutor:
    spec = worker_specs(resolve({"model": "toy", "device": "cpu", **flags}, {}))[0]
    return ProcessExecutor(spec, patience=patience or Patience())


def test_a_worker_makes_the_clip_that_this_process_makes_and_steps_are_told(start):
    asked = {"seed": 7, "height": 256, "width": 256, "num_frames": 24}
    here = submitted(start(num_threads=1), **asked).result()
    engine = start(**QUICK, num_threads=1)
    heard = submitted(engine, **asked)
    there = heard.result()
    assert there.recipe.frames_digest == here.recipe.frames_digest
    assert there.recipe.wave_digest == here.recipe.wave_digest
    assert there.recipe.engine == here.recipe.engine
    assert [event.index for event in heard.steps] == [1, 2, 3, 4]
    assert list(there.stage_durations) == ["queue", "encode", "prepare", "denoise", "decode"]
    pid = pid_of(engine)
    assert pid != os.getpid()
    engine.close()
    assert not alive(pid)


@pytest.mark.soak
def test_mini_h3_makes_the_same_clip_in_a_worker_and_after_a_restart(start):
    asked = {"seed": 7, "height": 64, "width": 64, "num_frames": 96, "num_inference_steps": 2}
    here = submitted(start(model="mini-h3", num_threads=1), **asked).result().recipe
    engine = start(**QUICK, model="mini-h3", num_threads=1)
    there = submitted(engine, **asked).result().recipe
    os.kill(pid_of(engine), signal.SIGKILL)
    until(lambda: engine.health.replicas[0].restarts and engine.health.is_ready)
    again = submitted(engine, **asked).result().recipe
    assert (here.frames_digest, here.wave_digest) == (there.frames_digest, there.wave_digest)
    assert (here.frames_digest, here.wave_digest) == (again.frames_digest, again.wave_digest)
    assert here.weights_digest == there.weights_digest == again.weights_digest


def test_large_frames_come_in_shared_memory_and_leave_no_name(start):
    before = set(Path("/dev/shm").iterdir())
    result = submitted(start(**QUICK), height=512, width=512, num_frames=48).result()
    assert "memfd:omnireel" in mapping_of(result.frames)
    assert set(Path("/dev/shm").iterdir()) == before


def test_what_a_request_does_wrong_is_told_and_the_worker_goes_on(start):
    engine = start(**QUICK)
    pid = pid_of(engine)
    submitted(engine).result()
    for failure in ("encode", "step:2", "decode"):
        assert type(submitted(engine, extra_args={"fail": failure}).error()) is EngineError
    error = submitted(engine, extra_args={"fail": "oom"}).error()
    assert isinstance(error, OutOfMemory)
    assert "16x16 with 3 frames" in error.hint
    assert error.details["free_bytes"] > 0
    submitted(engine).result()
    assert pid_of(engine) == pid


def test_cancelling_and_time_act_within_a_step(start):
    engine = start(**QUICK)
    heard = submitted(engine, extra_args=SLOW, num_inference_steps=100)
    until(lambda: len(heard.steps) == 2)
    heard.ticket.cancel()
    assert isinstance(heard.error(), Cancelled)
    assert len(heard.steps) <= 4
    late = submitted(engine, extra_args=SLOW, num_inference_steps=100, timeout_seconds=0.2)
    assert "past its 0.2 s" in late.error().message
    assert isinstance(late.finals[0], DeadlineExceeded)
    assert len(late.steps) <= 6


def test_a_killed_worker_fails_its_request_and_is_started_again(start):
    engine = start(**QUICK)
    heard, waiting = submitted(engine, extra_args=SLOW, num_inference_steps=100), submitted(engine)
    until(lambda: heard.steps)
    pid = pid_of(engine)
    os.kill(pid, signal.SIGKILL)
    error = heard.error()
    assert isinstance(error, WorkerDied)
    assert "SIGKILL" in error.message
    assert waiting.result().frames is not None
    assert (engine.health.is_ready, engine.health.replicas[0].restarts) == (True, 1)
    assert pid_of(engine) != pid


def test_signals_that_go_to_everybody_leave_it_to_the_engine_to_stop(start):
    engine = start(**QUICK)
    heard = submitted(engine, extra_args=SLOW)
    until(lambda: heard.steps)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid_of(engine), number)
    heard.result()
    assert engine.health.replicas[0].restarts == 0


def test_an_idle_worker_that_dies_is_replaced_before_anybody_asks(start):
    engine = start(**QUICK)
    pid = pid_of(engine)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not engine.health.is_ready)
    until(lambda: engine.health.is_ready)
    assert pid_of(engine) != pid
    assert "SIGKILL" in engine.health.replicas[0].problem


def test_what_waits_for_a_worker_that_loads_can_be_cancelled_and_times_out(start):
    engine = start(**QUICK)
    os.kill(pid_of(engine), signal.SIGKILL)
    until(lambda: not engine.health.is_ready)
    late, unwanted, patient = submitted(engine, timeout_seconds=0.1), submitted(engine), submitted(engine)
    unwanted.ticket.cancel()
    assert isinstance(unwanted.error(), Cancelled)
    assert isinstance(late.error(), DeadlineExceeded)
    assert not engine.health.is_ready
    patient.result()


def test_a_stopped_worker_is_killed_when_it_gives_no_sign_of_life(start):
    engine = start(**QUICK, rerun_interrupted=True)
    expected = submitted(engine, seed=3, extra_args=SLOW).result().recipe.frames_digest
    heard = submitted(engine, seed=3, extra_args=SLOW)
    until(lambda: heard.steps)
    pid = pid_of(engine)
    os.kill(pid, signal.SIGSTOP)
    # It runs again from the beginning, once, and comes out the same.
    assert heard.result().recipe.frames_digest == expected
    assert not alive(pid)
    assert heard.ticket.runs == 2


def test_a_step_without_end_is_ended(start):
    engine = start(distributed_executor_backend="mp", step_timeout_seconds=0.5)
    error = submitted(engine, extra_args={"step_seconds": 60}).error()
    assert "no progress for 0.5 s" in error.message
    submitted(engine).result()


@pytest.mark.soak
def test_a_request_that_always_kills_its_worker_is_run_again_once_only(start):
    engine = start(**QUICK, rerun_interrupted=True, step_timeout_seconds=0.3)
    heard = submitted(engine, extra_args={"step_seconds": 60})
    assert isinstance(heard.error(), WorkerDied)
    assert heard.ticket.runs == 2


def test_a_crash_loop_ends_in_a_clear_stop(start):
    engine = start(**QUICK, max_worker_deaths=2)
    heard = submitted(engine, extra_args={"step_seconds": 1}, num_inference_steps=100)
    waiting = submitted(engine)
    del waiting
    killed: set[int] = set()

    def kill_again() -> bool:
        pid = engine.health.replicas[0].pid
        if pid is not None and pid not in killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        return not engine.is_alive

    until(kill_again)
    assert isinstance(heard.error(), EngineError)
    assert str(engine.health.replicas[0].state) == "failed"
    with pytest.raises(EngineError, match="died 2 times in a row"):
        submitted(engine)


def test_one_replica_that_dies_does_not_stop_the_other(start):
    engine = start(**QUICK, num_replicas=2)
    both = [submitted(engine, extra_args=SLOW, num_inference_steps=20) for _ in range(2)]
    until(lambda: all(heard.steps for heard in both))
    replicas = engine.health.replicas
    assert [replica.running for replica in replicas] == [1, 1]
    os.kill(replicas[0].pid, signal.SIGKILL)
    last = [heard.last() for heard in both]
    assert sorted(isinstance(one, WorkerDied) for one in last) == [False, True]
    assert engine.health.is_ready


def test_closing_ends_a_worker_that_hangs(start):
    engine = start(distributed_executor_backend="mp")
    heard = submitted(engine, extra_args={"step_seconds": 60})
    until(lambda: engine.health.running)
    pid = pid_of(engine)
    begun = time.monotonic()
    engine.close(timeout_seconds=0.2)
    assert time.monotonic() - begun < 10
    assert isinstance(heard.error(), Cancelled)
    assert not alive(pid)


def test_a_worker_ends_when_its_engine_is_gone():
    one = executor()
    one.start()
    (pid,), link = one.pids, one._link
    assert isinstance(link, SubprocessLink)
    assert pid is not None
    # As the kernel does when the engine is killed.
    link._socket._socket.shutdown(2)
    until(lambda: not alive(pid))
    with pytest.raises(WorkerDied):
        one.check(0.5)


def test_a_worker_that_cannot_load_says_why(monkeypatch, tmp_path):
    (tmp_path / "modular_model_index.json").write_text('{"_class_name": "MiniMaxH3Pipeline"}')
    spec = worker_specs(resolve({"model": "mini-h3", "device": "cpu"}, {}))[0]
    checkpoint = type(spec.context.checkpoint)(
        name="broken", facts=spec.context.checkpoint.facts, path=tmp_path, index={"_class_name": "MiniMaxH3Pipeline"}
    )
    context = type(spec.context)(
        checkpoint=checkpoint,
        platform=spec.context.platform,
        device="cpu",
        dtype="float32",
        attention=spec.context.attention,
    )
    broken = ProcessExecutor(type(spec)(context=context, device_index=0, engine={}), patience=Patience())
    with pytest.raises(BadCheckpoint):
        broken.start()
    assert broken.pids == ()


def test_a_worker_that_dies_while_it_loads_is_told_with_its_last_lines(monkeypatch):
    monkeypatch.setattr("omnireel.engine.child._START", "import sys; sys.exit('no such library')")
    with pytest.raises(WorkerDied, match=r"exit code 1.*no such library"):
        executor().start()


def test_a_worker_has_the_variables_of_its_stage_beside_those_of_its_engine(monkeypatch):
    monkeypatch.setenv("OF_ALL", "inherited")
    where = "omnireel.engine.child._START"
    monkeypatch.setattr(where, "import os; print(os.environ['OF_ALL'], os.environ['OF_ONE']); os._exit(3)")
    with pytest.raises(WorkerDied, match="inherited own"):
        executor(env={"OF_ONE": "own"}).start()


OWN_WORKER = """
import os
from omnireel.engine.worker import Worker
class Own(Worker):
    def load(self, spec):
        print("prepared for", spec.name, flush=True)
        if "FAIL" in os.environ:
            raise RuntimeError("no such card")
        return super().load(spec)
"""


@pytest.fixture
def own_worker(tmp_path, monkeypatch):
    """The name of a class of workers that is not the package's."""
    (tmp_path / "own_worker.py").write_text(OWN_WORKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_worker.Own"
    sys.modules.pop("own_worker", None)


def test_a_worker_of_a_class_of_ones_own_prepares_and_runs(start, own_worker, capfd):
    engine = start(**QUICK, worker_cls=own_worker)
    submitted(engine).result()
    assert "prepared for 0" in capfd.readouterr().err


def test_a_class_of_ones_own_that_fails_is_told_as_such(own_worker, monkeypatch):
    monkeypatch.setenv("FAIL", "1")
    engine = engine_of(**QUICK, worker_cls=own_worker)
    with pytest.raises(EngineError, match="RuntimeError") as caught:
        engine.start()
    assert "a bug in omnireel or Own" in caught.value.hint
    engine.close()


def test_a_class_that_is_missing_where_the_worker_runs_is_told(own_worker, monkeypatch):
    one = executor(worker_cls=own_worker)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not Path(path, "own_worker.py").is_file()])
    with pytest.raises(
        EngineError, match=r"there is no worker own_worker\.Own here: no module own_worker is installed"
    ):
        one.start()


def test_a_worker_that_loads_for_too_long_is_told_with_its_last_lines(monkeypatch):
    code = "import socket, sys, time; s = socket.socket(fileno=int(sys.argv[1])); print('reading', flush=True); time.sleep(60)"
    monkeypatch.setattr("omnireel.engine.child._START", code)
    with pytest.raises(WorkerDied, match=r"did not load its model in 1 s.*reading"):
        executor(Patience(start=1.0)).start()


def test_an_executor_that_is_not_started_says_so():
    with pytest.raises(EngineError, match="not started"):
        executor().execute([ticket()], TakingFeed())


@pytest.fixture
def beside(monkeypatch):
    """Makes executors whose worker is a thread of this process; they are closed afterwards."""
    monkeypatch.setattr("omnireel.engine.worker.log.configure", lambda *values, **more: None)
    monkeypatch.setattr("omnireel.engine.worker.set_title", lambda *words: None)
    made: list[ProcessExecutor] = []

    def make(patience: Patience, **flags) -> ProcessExecutor:
        spec = worker_specs(resolve({"model": "toy", "device": "cpu", **flags}, {}))[0]
        made.append(ProcessExecutor(spec, patience=patience, launch=ThreadLink))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_request_that_cannot_be_sent_fails_alone(beside):
    one, good, bad = beside(Patience(), max_num_seqs=2), ticket(), ticket()
    bad.workload = replace(bad.workload, settings={**bad.workload.settings, "odd": object()})
    feed = TakingFeed()
    one.execute([good, bad], feed)
    assert feed.outcome(good).output.frames is not None
    with pytest.raises(EngineError, match="hand-over to its worker"):
        feed.outcome(bad)
    feed = TakingFeed()
    one.execute([good], feed)
    assert feed.outcome(good)


def test_one_for_which_there_is_no_shared_memory_is_out_of_memory(beside, monkeypatch):
    one, asked = beside(Patience()), ticket()
    asked.workload = replace(asked.workload, tensors={"a": np.zeros(2**20)})

    def none_left(size_bytes):
        raise MemoryError(f"no shared memory of {size_bytes} bytes")

    monkeypatch.setattr("omnireel.engine.blocks.new_block", none_left)
    feed = TakingFeed()
    one.execute([asked], feed)
    assert isinstance(feed.outcomes[asked.request_id], OutOfMemory)


def test_the_time_of_a_batch_is_that_of_each_request_and_not_of_all_that_join(beside):
    one = beside(Patience(batch=0.6), max_num_seqs=2)
    tickets = [ticket(extra_args={"step_seconds": 0.1}, num_inference_steps=4) for _ in range(6)]
    feed = TakingFeed(later=tickets[1:])
    one.execute(tickets[:1], feed)
    assert all(feed.outcome(one) for one in tickets)
    with pytest.raises(WorkerDied, match=r"did not end its batch in 0\.6 s"):
        one.execute([ticket(extra_args={"step_seconds": 0.1}, num_inference_steps=20)], TakingFeed())


def test_the_first_step_of_a_model_that_compiles_has_the_time_of_loading(beside):
    one = beside(Patience(step=0.3), compile_blocks="on")
    slow, feed = {"step_seconds": 0.6}, TakingFeed()
    first = ticket(extra_args=slow, num_inference_steps=2)
    one.execute([first], feed)
    assert feed.outcome(first)
    with pytest.raises(WorkerDied, match=r"no progress for 0\.3 s"):
        one.execute([ticket(extra_args=slow, num_inference_steps=2)], feed)


def test_a_system_without_room_for_another_process_is_no_bug():
    def launch():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    one = ProcessExecutor(executor()._spec, patience=Patience(), launch=launch)
    with pytest.raises(WorkerDied, match=r"could not be started: .*temporarily unavailable"):
        one.start()
    assert one.pids == ()


def send_many(link: SubprocessLink, message: StageMessage) -> None:
    for _ in range(100):
        link.send(message)


def test_sending_to_a_worker_that_does_not_read_ends(monkeypatch):
    monkeypatch.setattr("omnireel.engine.executors.process.SEND_SECONDS", 0.2)
    code = "import socket, sys, time; s = socket.socket(fileno=int(sys.argv[1])); time.sleep(60)"
    monkeypatch.setattr("omnireel.engine.child._START", code)
    link = SubprocessLink(Child("0"))
    try:
        with pytest.raises(LinkClosed):
            send_many(link, StageMessage(kind=Kind.RUN, body="x" * 100_000))
    finally:
        link.kill()
        link.close(5)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("omnireel-worker")]
