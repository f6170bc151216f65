"""Real servers for tests: processes on free loopback ports, that always stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.support.mini import MINI

import omnireel.errors
from omnireel.media.recipe import read_recipe

START_SECONDS = 90.0
PATIENCE_SECONDS = 60.0


class Running:
    """A server process. `http` talks to it; `folder` holds its storage and its log."""

    def __init__(
        self, model: str, folder: Path, flags: tuple[str, ...], environment: Mapping[str, str], *, backend: str
    ) -> None:
        self.folder, self.storage, self.log = folder, folder / "storage", folder / "log"
        folder.mkdir(parents=True, exist_ok=True)
        home = folder / "home"
        home.mkdir(exist_ok=True)
        source = str(Path(omnireel.errors.__file__).parents[1])
        command = [sys.executable, "-m", "omnireel.cli", "serve", model, "--port", "0"]
        command += [
            "--distributed-executor-backend",
            backend,
            "--num-threads",
            "1",
            "--storage-path",
            str(self.storage),
            *flags,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                env={"HOME": str(home), "PATH": os.defpath, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", **environment},
            )  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_SECONDS, trust_env=False)

    @property
    def words(self) -> str:
        """What it has written to stderr."""
        return self.log.read_text()

    def wait_until_ready(self) -> None:
        """Returns when /health says that jobs are run."""
        until = time.monotonic() + START_SECONDS
        while self.http.get("/health").status_code != 200:
            assert self.process.poll() is None, self.words
            assert time.monotonic() < until, self.words
            time.sleep(0.05)

    def create(self, prompt: str = "a kite", **fields: Any) -> dict[str, Any]:
        """A job that must be accepted, out of a JSON body."""
        answer = self.http.post("/v1/videos", json={"prompt": prompt, **fields})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as it stands."""
        answer = self.http.get(f"/v1/videos/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def ended(self, job_id: str) -> dict[str, Any]:
        """Waits for a job's end."""
        return self.until(job_id, "completed", "failed", "cancelled")

    def until(self, job_id: str, *states: str) -> dict[str, Any]:
        """Waits for a job to be in one of these states."""
        until = time.monotonic() + PATIENCE_SECONDS
        while (job := self.job(job_id))["status"] not in states:
            assert time.monotonic() < until, (job, self.words)
            time.sleep(0.02)
        return job

    def folders(self) -> set[str]:
        """Names of the folders of jobs."""
        return {path.name for path in (self.storage / "videos").iterdir()}

    def terminate(self) -> int:
        """Asks it to stop, and gives its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)


@contextmanager
def running(
    folder: Path,
    *flags: str,
    model: str = "toy",
    environment: Mapping[str, str] | None = None,
    is_ready: bool = True,
    backend: str = "uni",
) -> Iterator[Running]:
    """A server that runs within this block; in one process, for that starts sooner, unless `backend` says mp."""
    server = Running(model, folder, flags, environment or {}, backend=backend)
    try:
        if is_ready:
            server.wait_until_ready()
        yield server
    finally:
        server.http.close()
        server.kill()
        assert server.process.stdout is not None
        server.process.stdout.close()


def digests(content: bytes, folder: Path) -> tuple[str, str]:
    """What a clip says of its frames and its sound; a file also holds the second in which it was written."""
    (folder / "clip.mp4").write_bytes(content)
    recipe = read_recipe(folder / "clip.mp4")
    assert recipe is not None
    return recipe.frames_digest, recipe.wave_digest


def generated_requests(server: Running, seed: int, examples: int, phases: str) -> int:
    """Lets schemathesis ask what the document allows and what it does not; gives how often. Any finding fails."""
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--seed", str(seed), "--max-examples",
        str(examples), "--phases", phases, "--no-color", "--request-timeout", "30", "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        "--exclude-path", "/v1/omni/sleep",
    ]  # fmt: skip
    ran = subprocess.run(command, cwd=server.folder, capture_output=True, text=True, timeout=3000, check=False)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    (count,) = re.findall(r"(\d+) generated", ran.stdout)
    return int(count)


def every_task(folder: Path) -> Path:
    """The embedded checkpoint with a DiT for references beside the other; the weights are the same."""
    folder.mkdir()
    for part in MINI.iterdir():
        if part.is_dir():
            (folder / part.name).symlink_to(part)
    index = json.loads((MINI / "modular_model_index.json").read_text())
    if not (folder / "transformer_ref").exists():
        (folder / "transformer_ref").symlink_to(MINI / "transformer")
    index.setdefault("transformer_ref", index["transformer"])
    # The encoder of the miniature takes few tokens, and pictures count.
    index["reference_image_short_edge"] = 64
    (folder / "modular_model_index.json").write_text(json.dumps(index))
    return folder
