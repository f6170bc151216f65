"""Real processes, killed and stopped at every phase: every request ends once, and nothing is left behind.

The trials and the soak are long (`pytest -m soak --log-cli-level warning` shows figures); the variable TRIALS says how many
trials there are, KILLING_SECONDS for how long workers are killed in quick succession.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import Heard, engine_of
from tests.support.processes import alive, children, open_files, proportional_mb, resident_mb, shared_names, until

from omnireel.engine.orchestrator import Engine
from omnireel.engine.result import GenerationResult
from omnireel.errors import EngineError, OmniReelError, QueueFull, WorkerDied
from omnireel.request import DiffusionSamplingParams, GenerationRequest, OutputSpec

TOY: dict[str, Any] = {
    "height": 256,
    "width": 256,
    "num_frames": 48,
    "num_inference_steps": 9,
    "extra_args": {"step_seconds": 0.02},
}
H3: dict[str, Any] = {"height": 64, "width": 64, "num_frames": 96, "num_inference_steps": 4}
logger = logging.getLogger(__name__)

HUNG_SECONDS = 2.0
TRIALS = int(os.environ.get("TRIALS", "100"))
KILLING_SECONDS = float(os.environ.get("KILLING_SECONDS", "60"))
PHASES = ("loading", "idle", "just sent", "step 1", "step 3", "last step", "any time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One to try: settings, what is asked of it, and how long a request takes at most."""

    name: str
    asked: dict[str, Any]
    seconds: float


MODELS = {
    "toy": Model(name="toy", asked=TOY, seconds=0.5),
    "mini-h3": Model(name="mini-h3", asked=H3, seconds=4.0),
}


def request(model: Model, seed: int, output: Path | None = None) -> GenerationRequest:
    sampling = DiffusionSamplingParams(seed=seed, **model.asked)
    return GenerationRequest(prompt="a kite", sampling=sampling, output=OutputSpec(path=output))


def submitted(engine: Engine, asked: GenerationRequest) -> Heard:
    heard = Heard()
    heard.ticket = engine.submit(asked, heard)
    return heard


def engine_with(model: Model, **flags: object) -> Engine:
    more = {"num_threads": 1, "worker_timeout_seconds": HUNG_SECONDS, "max_worker_deaths": 1000, "max_queue": 16}
    made = engine_of(model=model.name, distributed_executor_backend="mp", **{**more, **flags})
    made.start()
    return made


def digest_of(result: GenerationResult) -> str:
    assert result.recipe is not None
    return result.recipe.frames_digest


def pids(engine: Engine) -> list[int]:
    return [pid for replica in engine.health.replicas for pid in replica.pids]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process, no name in /dev/shm and no descriptor more than before."""
    before = shared_names(), open_files(), children()
    yield
    until(lambda: children() <= before[2])
    assert shared_names() <= before[0]
    assert open_files() <= before[1] + 2


class Trials:
    """One engine that is struck again and again."""

    def __init__(self, model: Model, seed: int, folder: Path, **flags: object) -> None:
        self.model = model
        self.random = random.Random(seed)
        self.engine = engine_with(model, **flags)
        self.folder = folder
        self.outcomes: Counter[str] = Counter()
        self.seen_seconds: list[float] = []
        self.digests = {seed: digest_of(submitted(self.engine, request(model, seed)).result()) for seed in range(4)}

    def run(self) -> None:
        """One trial: some requests, one blow, and everything as it should be afterwards."""
        phase, blow = self.random.choice(PHASES), self.random.choice((signal.SIGKILL, signal.SIGSTOP))
        seeds = [self.random.randrange(4) for _ in range(self.random.randint(1, 5))]
        paths = [self.folder / f"{number}.mp4" if self.random.random() < 0.3 else None for number in range(len(seeds))]
        restarts = sum(replica.restarts for replica in self.engine.health.replicas)
        heard: list[Heard] = []
        if phase == "loading":
            # A first blow, so that there is something that loads; the second one meets it.
            os.kill(self.random.choice(pids(self.engine)), signal.SIGKILL)
            until(lambda: not self.engine.health.is_ready or self.restarts > restarts)
            time.sleep(self.random.uniform(0.2, 2.0))
        if phase == "idle":
            self._strike(blow)
        for seed, path in zip(seeds, paths, strict=True):
            heard.append(submitted(self.engine, request(self.model, seed, path)))
        self._wait_for(phase, heard[0])
        if phase != "idle":
            self._strike(blow)
        self._all_ended(heard, seeds, paths)
        until(lambda: self.engine.health.is_ready and all(r.state == "ready" for r in self.engine.health.replicas), 60)
        self._works()
        self.outcomes[f"{phase}, {blow.name}"] += 1

    @property
    def restarts(self) -> int:
        """Of all replicas."""
        return sum(replica.restarts for replica in self.engine.health.replicas)

    def _wait_for(self, phase: str, first: Heard) -> None:
        steps = {"step 1": 1, "step 3": 3, "last step": int(str(self.model.asked["num_inference_steps"])) - 1}
        if phase in steps:
            until(lambda: len(first.steps) >= steps[phase] or first.finals)
        elif phase == "any time":
            time.sleep(self.random.uniform(0, self.model.seconds))

    def _strike(self, blow: signal.Signals) -> None:
        found = pids(self.engine)
        if not found:
            return
        pid, struck = self.random.choice(found), time.monotonic()
        os.kill(pid, blow)
        until(lambda: not alive(pid) or pid not in pids(self.engine), 60)
        self.seen_seconds.append(time.monotonic() - struck)

    def _all_ended(self, heard: list[Heard], seeds: list[int], paths: list[Path | None]) -> None:
        for one, seed, path in zip(heard, seeds, paths, strict=True):
            until(lambda one=one: one.finals, 120)  # type: ignore[misc]
            (last,) = one.finals
            self.outcomes[type(last).__name__] += 1
            if isinstance(last, GenerationResult):
                assert digest_of(last) == self.digests[seed]
                assert path is None or path.stat().st_size > 0
            else:
                assert isinstance(last, WorkerDied)
                assert path is None or not path.exists()
            if path is not None:
                path.unlink(missing_ok=True)
        assert not list(self.folder.iterdir())

    def _works(self) -> None:
        last = submitted(self.engine, request(self.model, 0)).last()
        assert isinstance(last, GenerationResult)
        assert digest_of(last) == self.digests[0]


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("name", "flags", "share"),
    [
        ("toy", {}, 0.4),
        ("toy", {"num_replicas": 2, "rerun_interrupted": True}, 0.3),
        ("toy", {"max_num_seqs": 4, "step_execution": True}, 0.2),
        ("toy", {"ulysses_degree": 3}, 0.3),
        ("toy", {"ulysses_degree": 2, "num_replicas": 2, "rerun_interrupted": True}, 0.2),
        ("mini-h3", {}, 0.1),
        ("mini-h3", {"ulysses_degree": 2}, 0.05),
    ],
)
def test_trials(nothing_left, tmp_path, name, flags, share):
    trials = Trials(MODELS[name], seed=7, folder=tmp_path, **flags)
    try:
        for number in range(max(1, round(TRIALS * share))):
            trials.run()
            logger.warning("%d: %s, seen after %.2f s", number, dict(trials.outcomes), max(trials.seen_seconds))
    finally:
        trials.engine.close()
    assert not trials.engine.is_alive


class Client(threading.Thread):
    """Asks for one clip after another until it is told to leave, and keeps what every request came to."""

    def __init__(self, engine: Engine, number: int) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self._engine = engine
        self._random = random.Random(number)
        self.leaving = threading.Event()
        self.asked: list[tuple[int, Heard]] = []

    def run(self) -> None:
        """Up to three requests at a time."""
        while not self.leaving.is_set():
            if sum(not heard.finals for _, heard in self.asked) >= 3:
                time.sleep(0.01)
                continue
            seed = self._random.randrange(4)
            try:
                self.asked.append((seed, submitted(self._engine, request(MODELS["toy"], seed))))
            except QueueFull:
                time.sleep(0.1)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_quick_kills_under_load_lose_and_double_nothing(nothing_left):
    """Often enough that most workers die while they load or run their first requests."""
    chance = random.Random(11)
    engine = engine_with(MODELS["toy"], num_replicas=2, rerun_interrupted=True)
    kills, unready = 0, 0.0
    try:
        digests = {seed: digest_of(submitted(engine, request(MODELS["toy"], seed)).result()) for seed in range(4)}
        clients = [Client(engine, number) for number in range(4)]
        for client in clients:
            client.start()
        end = time.monotonic() + KILLING_SECONDS
        while time.monotonic() < end:
            pause = time.monotonic() + chance.uniform(0.8, 2.5)
            while time.monotonic() < pause:
                time.sleep(0.02)
                unready += 0.02 * (not engine.health.is_ready)
            if found := pids(engine):
                os.kill(chance.choice(found), signal.SIGKILL)
                kills += 1
        for client in clients:
            client.leaving.set()
            client.join()
        asked = [pair for client in clients for pair in client.asked]
        until(lambda: all(heard.finals for _, heard in asked), 120)
        until(lambda: all(replica.state == "ready" for replica in engine.health.replicas), 60)
        restarts = sum(replica.restarts for replica in engine.health.replicas)
        assert digest_of(submitted(engine, request(MODELS["toy"], 0)).result()) == digests[0]
    finally:
        engine.close()
    ends = Counter(type(last).__name__ for _, heard in asked for last in heard.finals)
    logger.warning(
        "%d kills, %d restarts, %d requests: %s, run twice %d, no replica ready for %.1f s",
        kills, restarts, len(asked), dict(ends), sum(heard.ticket.runs > 1 for _, heard in asked), unready,
    )  # fmt: skip
    assert all(len(heard.finals) == 1 for _, heard in asked)
    assert set(ends) <= {"GenerationResult", "WorkerDied"}
    assert all(
        digest_of(last) == digests[seed]
        for seed, heard in asked
        for last in heard.finals
        if isinstance(last, GenerationResult)
    )
    # Run again once, so that only one whose second worker died too has failed.
    assert all(heard.ticket.runs >= 2 for _, heard in asked if isinstance(heard.finals[0], WorkerDied))
    assert ends["GenerationResult"]
    assert 0 < restarts <= kills


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_crash_loop_pauses_longer_each_time_and_stops_where_it_is_said(nothing_left):
    engine = engine_with(MODELS["toy"], max_worker_deaths=5)
    pauses: list[float] = []
    try:
        struck = 0.0
        seen: set[int] = set()
        while engine.is_alive:
            for pid in set(pids(engine)) - seen:
                if struck:
                    pauses.append(time.monotonic() - struck)
                seen.add(pid)
                os.kill(pid, signal.SIGKILL)
                until(lambda pid=pid: pid not in pids(engine))  # type: ignore[misc]
                struck = time.monotonic()
            time.sleep(0.005)
        problem = engine.health.replicas[0].problem
        with pytest.raises(EngineError, match="died 5 times in a row"):
            submitted(engine, request(MODELS["toy"], 0))
    finally:
        engine.close()
    logger.warning("five deaths, pauses of %s s, last: %s", [round(pause, 2) for pause in pauses], problem)
    assert len(pauses) == 4
    # A little less, for the first moment of a pause is before its start is seen.
    assert all(pause > 0.9 * expected for pause, expected in zip(pauses, (0.2, 0.4, 0.8, 1.6), strict=True))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "count", "warm"), [("toy", 1000, 200), ("mini-h3", 50, 10)])
def test_memory_stays_flat(nothing_left, name, count, warm):
    model = MODELS[name]
    engine = engine_with(model)
    sizes: list[tuple[float, float]] = []
    try:
        for number in range(count):
            asked = request(model, number)
            if name == "toy":
                asked = replace(asked, sampling=replace(asked.sampling, extra_args=None, num_frames=8))
            heard = Heard()
            # Not `submitted`, whose listener and ticket hold each other, and the clip, until the collector comes.
            engine.submit(asked, heard)
            heard.result()
            del heard
            sizes.append((resident_mb(), resident_mb(pids(engine)[0])))
    finally:
        engine.close()
    for which in (0, 1):
        series = [pair[which] for pair in sizes]
        early, late = max(series[warm : 2 * warm]), max(series[-warm:])
        logger.warning("%s: %s %.1f MiB then %.1f MiB", name, ("front", "worker")[which], early, late)
        assert late <= 1.02 * early


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_large_clip_is_never_there_twice(nothing_left, tmp_path):
    engine = engine_with(MODELS["toy"])
    peaks: list[float] = []
    try:
        submitted(engine, request(MODELS["toy"], 0)).result()
        (worker,) = pids(engine)
        before = proportional_mb() + proportional_mb(worker)
        sampling = DiffusionSamplingParams(height=768, width=1024, num_frames=240, num_inference_steps=2, seed=1)
        heard = submitted(
            engine, GenerationRequest(prompt="a kite", sampling=sampling, output=OutputSpec(path=tmp_path / "a.mp4"))
        )
        while not heard.finals:
            peaks.append(proportional_mb() + proportional_mb(worker) - before)
            time.sleep(0.05)
        result = heard.result()
    finally:
        engine.close()
    assert result.frames is not None
    clips = max(peaks) / (result.frames.nbytes / 2**20)
    logger.warning("both processes held %.3f clips at most", clips)
    assert clips < 1.5


@pytest.mark.slow
def test_64_callers_on_a_line_of_16_all_get_their_clip_or_a_time_to_come_back(nothing_left):
    engine = engine_with(MODELS["toy"], num_replicas=2, max_num_seqs=2, step_execution=True)
    quick: dict[str, Any] = {"height": 32, "width": 32, "num_frames": 8, "num_inference_steps": 3}
    retries: list[float] = []
    most = 0
    heard: list[Heard] = []
    try:
        for seed in range(64):
            sampling = DiffusionSamplingParams(seed=seed % 4, **quick)
            asked = GenerationRequest(prompt="a kite", sampling=sampling)
            while True:
                try:
                    heard.append(submitted(engine, asked))
                    break
                except QueueFull as error:
                    retries.append(error.details["retry_after_seconds"])
                    most = max(most, engine.health.waiting)
                    time.sleep(0.01)
        results = [one.result() for one in heard]
    finally:
        engine.close()
    assert min(retries) >= 1
    assert most <= 16 + 4
    digests = [digest_of(result) for result in results]
    assert len(set(digests)) == 4
    assert digests == digests[:4] * 16
    assert all(len(one.finals) == 1 for one in heard)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blow", "is_stopped"),
    [(signal.SIGKILL, True), pytest.param(signal.SIGKILL, False, marks=pytest.mark.soak),
     pytest.param(signal.SIGTERM, False, marks=pytest.mark.soak)],
)  # fmt: skip
def test_a_worker_does_not_outlive_its_engine_even_stopped(tmp_path, blow, is_stopped):
    command = [
        sys.executable, "-m", "omnireel.cli", "generate", "a kite", "--model", "toy", "--device", "cpu",
        "--distributed-executor-backend", "mp", "--num-inference-steps", "100", "-o", str(tmp_path / "clip.mp4"), "-q",
        "--extra-args", '{"step_seconds": 0.2}',
    ]  # fmt: skip
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.defpath, "OMP_NUM_THREADS": "1"}
    front = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    try:
        until(lambda: front.poll() is not None or children(front.pid))
        assert front.poll() is None, front.communicate()
        (worker,) = children(front.pid)
        time.sleep(1.0)
        if is_stopped:
            os.kill(worker, signal.SIGSTOP)
        front.send_signal(blow)
        front.communicate(timeout=20)
        until(lambda: not alive(worker), 10)
    finally:
        front.kill()
        front.communicate()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_engine_that_stood_still_does_not_take_its_worker_for_dead(nothing_left):
    """As when its process is stopped and goes on: the clock went on meanwhile."""
    code = (
        "import os, sys; from omnireel import Omni\n"
        "with Omni('toy', device='cpu', distributed_executor_backend='mp', worker_timeout_seconds=1.0) as omni:\n"
        "    print('ready', flush=True); sys.stdin.readline(); omni.generate('a kite')\n"
        "    health = omni._engine.health; print(health.replicas[0].restarts, flush=True)\n"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.defpath, "OMP_NUM_THREADS": "1"}
    front = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert front.stdin is not None
    assert front.stdout is not None
    try:
        assert front.stdout.readline() == "ready\n"
        front.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        front.send_signal(signal.SIGCONT)
        front.stdin.write("\n")
        front.stdin.flush()
        assert front.stdout.readline() == "0\n"
    finally:
        front.kill()
        front.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["loading", "running"])
def test_closing_is_bounded_whatever_goes_on(nothing_left, phase):
    engine = engine_with(MODELS["toy"])
    heard = [submitted(engine, request(MODELS["toy"], seed)) for seed in range(3)]
    pid = pids(engine)[0]
    if phase == "running":
        until(lambda: heard[0].steps)
    if phase == "loading":
        os.kill(pid, signal.SIGKILL)
        until(lambda: not engine.health.is_ready)
        until(lambda: pids(engine))
    found = pids(engine)
    engine.close(timeout_seconds=10)
    assert not any(alive(one) for one in found)
    assert all(len(one.finals) == 1 for one in heard)
    assert all(isinstance(one.finals[0], OmniReelError) for one in heard)
