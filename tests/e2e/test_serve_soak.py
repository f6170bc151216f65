"""What takes minutes: random kills under mixed load, thousands of generated requests, and crowds of idle connections.

OMNIREEL tests clear its variables, so the size is set by SOAK_TRIALS (kills, 200) and SOAK_REQUESTS (generated ones, 10,000). They
may be run in pieces: what a piece of one seed has shown is added up in the JSON file SOAK_RECORD, and a seed that fails comes again.
"""

import json
import os
import random
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from tests.support.servers import digests, generated_requests, running

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

TRIALS = int(os.environ.get("SOAK_TRIALS", "200"))
REQUESTS = int(os.environ.get("SOAK_REQUESTS", "10000"))
PIECE_TRIALS = 20


class Record:
    """Counts of one kind that went well, and how many seeds they took; kept in SOAK_RECORD where it is set."""

    def __init__(self, kind: str) -> None:
        self._place = Path(place) if (place := os.environ.get("SOAK_RECORD")) else None
        self._kind = kind
        self.counts: dict[str, int] = self._all().get(kind, {})

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)

    def add(self, **counts: int) -> None:
        """One more seed."""
        for name, count in {"seeds": 1, **counts}.items():
            self.counts[name] = self[name] + count
        if self._place is not None:
            self._place.write_text(json.dumps(self._all() | {self._kind: self.counts}, indent=1) + "\n")
        sys.stdout.write(f"{self._kind}: {self.counts}\n")

    def _all(self) -> dict[str, dict[str, int]]:
        return json.loads(self._place.read_text()) if self._place is not None and self._place.exists() else {}


def workers_of(server) -> list[int]:
    places = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    found = []
    for place in places:
        with suppress(FileNotFoundError):
            found += [int(child) for child in place.read_text().split()]
    return found


class Load:
    """Accepted jobs by id: the seed, or None for one that was deleted; what is not acknowledged may or may not be there."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.accepted: dict[str, int | None] = {}
        self.unknown = 0

    def step(self, server) -> None:
        """One request of some kind; a server that dies meanwhile has answered nothing."""
        kind = self.chance.choices(("create", "cancel", "delete", "sync", "list"), (6, 1, 1, 1, 2))[0]
        seed = self.chance.randrange(2**31)
        body = {"prompt": "a kite", "seconds": 1, "seed": seed, "extra_params": {"step_seconds": 0.02}}
        alive = [job_id for job_id, found in self.accepted.items() if found is not None]
        try:
            if kind == "create":
                self.unknown += 1
                answer = server.http.post("/v1/videos", json=body)
                assert answer.status_code in (200, 503), answer.text
                self.unknown -= 1
                if answer.status_code == 200:
                    self.accepted[answer.json()["id"]] = seed
            elif kind == "sync":
                answer = server.http.post("/v1/videos/sync", json=body)
                assert answer.status_code in (200, 503), answer.text
            elif kind == "list":
                assert server.http.get("/v1/videos", params={"limit": 100}).status_code == 200
            elif alive and kind == "cancel":
                server.http.post(f"/v1/videos/{self.chance.choice(alive)}/cancel")
            elif alive:
                job_id = self.chance.choice(alive)
                # Whether it is deleted is not known until that is said.
                del self.accepted[job_id]
                self.unknown += 1
                if server.http.delete(f"/v1/videos/{job_id}").status_code == 200:
                    self.accepted[job_id] = None
                    self.unknown -= 1
        except httpx.HTTPError:
            return


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")
def test_random_kills_lose_nothing_and_leave_nothing_behind(tmp_path):
    record = Record("kills")
    while record["kills"] < TRIALS:
        seed = record["seeds"] + 1
        most = min(PIECE_TRIALS, TRIALS - record["kills"])
        record.add(**killed_at_random(tmp_path / f"seed-{seed}", seed, most))


def killed_at_random(folder: Path, seed: int, wanted_kills: int) -> dict[str, int]:
    """Kills servers and workers of one root under load, and looks at what is left at last; gives what there was."""
    chance = random.Random(seed)
    load = Load(chance)
    flags = ("--worker-timeout-seconds", "10", "--max-worker-deaths", "1000")
    kills = {"of_servers": 0, "of_workers": 0}
    while sum(kills.values()) < wanted_kills:
        with running(folder, *flags, backend="mp", is_ready=chance.random() < 0.8) as server:
            # The model's process dies some times, and then the server.
            for _ in range(chance.randrange(3)):
                for _ in range(chance.randrange(1, 8)):
                    load.step(server)
                for worker in workers_of(server):
                    with suppress(ProcessLookupError):
                        os.kill(worker, signal.SIGKILL)
                        kills["of_workers"] += 1
            for _ in range(chance.randrange(1, 12)):
                load.step(server)
            time.sleep(chance.random())
            server.kill()
            kills["of_servers"] += 1
    with running(folder, *flags, backend="mp") as server:
        listed = every_job(server)
        assert len(listed) == len(set(listed))
        wanted = {job_id for job_id, seed in load.accepted.items() if seed is not None}
        assert wanted <= set(listed)
        assert not {job_id for job_id, seed in load.accepted.items() if seed is None} & set(listed)
        assert len(set(listed) - wanted) <= load.unknown
        ended = {"completed": 0, "failed": 0, "cancelled": 0}
        for job_id in listed:
            job = server.ended(job_id)
            ended[job["status"]] += 1
            if job["status"] == "completed":
                assert job["seed"] == load.accepted.get(job_id, job["seed"])
                content = server.http.get(f"/v1/videos/{job_id}/content")
                assert content.status_code == 200
                assert all(digests(content.content, folder))
            elif job["status"] == "failed":
                assert job["error"]["code"] in ("interrupted", "worker_died"), job
        assert server.folders() == set(listed)
        assert not list((server.storage / "incoming").iterdir())
        assert not list(server.storage.rglob(".*"))
        assert "Traceback" not in server.words
    return {"kills": sum(kills.values()), **kills, "accepted": len(load.accepted), **ended}


def every_job(server) -> list[str]:
    """The ids of all jobs, page after page."""
    listed: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = server.http.get("/v1/videos", params={"limit": 100, "order": "asc", **after}).json()
        listed += [job["id"] for job in page["data"]]
        if not page["has_more"]:
            return listed
        after = {"after": page["last_id"]}


def test_no_generated_request_meets_an_undocumented_answer(tmp_path):
    record = Record("generated")
    with running(tmp_path, "--max-jobs", "20", "--media-timeout", "5", "--video-sync-timeout", "5") as server:
        while record["requests"] < REQUESTS:
            seed = record["seeds"] + 1
            phases = "fuzzing" if seed > 1 else "examples,coverage,fuzzing"
            record.add(requests=generated_requests(server, seed, 100, phases))
            assert "Traceback" not in server.words
            assert server.http.get("/health").status_code == 200


def test_crowds_and_slow_clients_keep_nobody_waiting(tmp_path):
    with running(tmp_path) as server:
        host, port = server.url.removeprefix("http://").split(":")
        crowd = []
        try:
            for k in range(1000):
                connection = socket.create_connection((host, int(port)))
                if k % 4 == 1:
                    connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nX-Slow: ")
                elif k % 4 == 2:
                    connection.sendall(
                        b"POST /v1/videos HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"
                    )
                crowd.append(connection)
            seconds = []
            for _ in range(50):
                for connection in crowd[1:100:4]:
                    connection.sendall(b"x")
                began = time.perf_counter()
                assert server.http.get("/health").status_code == 200
                seconds.append(time.perf_counter() - began)
            assert sorted(seconds)[-2] < 0.2
            assert server.ended(server.create(seconds=1)["id"])["status"] == "completed"
        finally:
            for connection in crowd:
                connection.close()
