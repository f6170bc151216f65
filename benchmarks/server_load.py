"""How fast the server answers: create, retrieve and list at a fixed rate, the most that it holds, and health beside a crowd.

    PYTHONPATH=src python -m benchmarks.server_load --output benchmarks/results/server_load.json

Starts servers of the toy, each in a folder of its own: with the model in a process of its own as `serve` has it (mp), and in the server's
(uni). At a fixed rate the time of a request counts from when it was due, so that a
server which stands still is charged for all that waits. Each case is measured with the model asleep (the API alone) and with jobs
that run meanwhile on the same cores. This script and the server share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

CONNECTIONS = 64
CROWD = 1000


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each case")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    load_before = round(os.getloadavg()[0], 2)
    rows = []
    for executor in ("mp", "uni"):
        for row in served(executor, arguments.rate, arguments.seconds):
            rows.append({"executor": executor, **row})
            print(json.dumps(rows[-1]), flush=True)
    environment = {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "cores": os.cpu_count(),
        "load_average_before": load_before,
        "load_average_after": round(os.getloadavg()[0], 2),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    arguments.output.write_text(json.dumps({"cases": rows, "environment": environment}, indent=1) + "\n")


def served(executor: str, rate: float, seconds: float) -> list[dict[str, Any]]:
    """Every case with a fresh server."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "omnireel.cli", "serve", "toy", "--port", "0", "--storage-path", folder]
        command += ["--max-jobs", "1000000", "--distributed-executor-backend", executor, "--num-threads", "1"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            return asyncio.run(measured(server.stdout.readline().strip(), rate, seconds))
        finally:
            server.kill()
            server.wait()


async def measured(address: str, rate: float, seconds: float) -> list[dict[str, Any]]:
    """Every case."""
    host, port = address.removeprefix("http://").split(":")
    while not is_ready(address):
        await asyncio.sleep(0.1)
    pool = Pool(host, int(port))
    first = json.loads((await pool.ask("POST", "/v1/videos", {"prompt": "a kite", "seconds": 1}))[1])
    cases: dict[str, Callable[[], Awaitable[Any]]] = {
        "create": lambda: pool.ask("POST", "/v1/videos", {"prompt": "a kite", "seconds": 1, "seed": 1}),
        "retrieve": lambda: pool.ask("GET", f"/v1/videos/{first['id']}"),
        "list of 20": lambda: pool.ask("GET", "/v1/videos?limit=20"),
    }
    rows = []
    for model in ("asleep", "at work"):
        await pool.ask("POST", "/v1/omni/sleep" if model == "asleep" else "/v1/omni/wakeup")
        for name, ask in cases.items():
            rows.append({"case": name, "model": model, **await at_rate(ask, rate, seconds)})
            if model == "asleep":
                rows.append({"case": f"{name}, as many as it takes", "model": model, **await flat_out(ask, seconds)})
    crowd = [await asyncio.open_connection(host, int(port)) for _ in range(CROWD)]
    row = await at_rate(lambda: pool.ask("GET", "/health"), 20.0, seconds)
    rows.append({"case": f"health beside {CROWD} idle connections", "model": "at work", **row})
    for _, writer in crowd:
        writer.close()
    pool.close()
    return rows


def is_ready(address: str) -> bool:
    """Whether /health answers 200."""
    try:
        with closing(urlopen(Request(f"{address}/health"), timeout=5)):
            return True
    except OSError:
        return False


async def at_rate(ask: Callable[[], Awaitable[Any]], rate: float, seconds: float) -> dict[str, Any]:
    """Requests that are due at equal distances, whether or not those before have been answered."""
    took: list[float] = []

    async def one(due: float) -> None:
        await ask()
        took.append(time.perf_counter() - due)

    tasks, began = [], time.perf_counter()
    for k in range(round(rate * seconds)):
        due = began + k / rate
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    held = len(took) / (time.perf_counter() - began)
    return {"asked_per_second": rate, "held_per_second": round(held, 1), **milliseconds(took)}


async def flat_out(ask: Callable[[], Awaitable[Any]], seconds: float) -> dict[str, Any]:
    """16 clients that ask again as soon as they are answered."""
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def client() -> None:
        while (began := time.perf_counter()) < until:
            await ask()
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(client() for _ in range(16)))
    return {"held_per_second": round(len(took) / seconds, 1), **milliseconds(took)}


def milliseconds(took: list[float]) -> dict[str, Any]:
    """Count and quantiles."""
    took = sorted(took)
    points = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {"requests": len(took)} | {
        f"{name}_ms": round(1000 * took[min(len(took) - 1, int(point * len(took)))], 2)
        for name, point in points.items()
    }


class Pool:
    """Kept-alive connections; requests wait for a free one."""

    def __init__(self, host: str, port: int) -> None:
        self._place = (host, port)
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._places = asyncio.Semaphore(CONNECTIONS)

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """(status, content) of one request, which must have gone well."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        async with self._places:
            reader, writer = self._free.pop() if self._free else await asyncio.open_connection(*self._place)
            writer.write(head.encode() + content)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
            answer = await reader.readexactly(length)
            self._free.append((reader, writer))
        status = int(lines[0].split()[1])
        assert status == 200, (status, answer[:500])
        return status, answer

    def close(self) -> None:
        """Lets the connections go."""
        for _, writer in self._free:
            writer.close()


if __name__ == "__main__":
    main()
