"""One clip over several processes, as a person asks for it: the command, Python, a deploy file of a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
from tests.support.language_model import write_language_model
from tests.support.processes import alive, children, shared_names, until
from tests.support.servers import digests, running

import omnireel.errors
from omnireel import DiffusionSamplingParams, Omni
from omnireel.media.recipe import read_recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SMALL = ("--height", "64", "--width", "64", "--num-frames", "96", "--num-inference-steps", "2", "--seed", "3")


def frames_of(path):
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def command(folder, *argv):
    """The command in a folder of its own; its exit code, and what it said."""
    source = str(Path(omnireel.errors.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-m", "omnireel.cli", *argv], cwd=folder, capture_output=True, text=True, timeout=200, check=False,
        env={"HOME": str(folder), "PATH": os.defpath, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return ran.returncode, ran.stdout, ran.stderr


def test_the_command_makes_the_same_clip_with_two_ranks(tmp_path):
    for degree, name in (("1", "one.mp4"), ("2", "two.mp4")):
        degrees = ("--usp", degree, "--vae-patch-parallel-size", degree)
        code, _, err = command(tmp_path, "generate", "a red ball", *SMALL, *degrees, "-o", name)
        assert code == 0, err
    recipes = [read_recipe(tmp_path / name) for name in ("one.mp4", "two.mp4")]
    assert [recipe.engine.get("ulysses_degree") for recipe in recipes] == [None, 2]
    one, two = (frames_of(tmp_path / name).astype(int) for name in ("one.mp4", "two.mp4"))
    # A rounding may move a level by one, and coding it makes that a little more.
    assert np.abs(one - two).max() <= 4
    assert np.abs(one - two).mean() < 0.05


@pytest.mark.gpus(2)
def test_two_cards_make_the_latents_of_one():
    sampling = DiffusionSamplingParams(
        seed=3, height=64, width=64, num_frames=96, num_inference_steps=3, output_type="latent"
    )
    found = []
    for degree in (1, 2):
        with Omni("mini-h3", device="cuda", dtype="float32", ulysses_degree=degree) as omni:
            found.append(omni.generate("a red ball", sampling)[0].latents)
    one, two = found
    assert one is not None
    assert two is not None
    for name, theirs in one.items():
        assert np.abs(two[name] - theirs).max() < 1e-3 * np.abs(theirs).max()


@pytest.mark.soak
def test_a_stage_of_a_pipeline_may_have_ranks_and_each_has_its_trace(tmp_path):
    folder = write_language_model(tmp_path / "lm")
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(
        f"pipeline: prompt_rewrite\nmodel: toy\ndevice: cpu\nstages:\n- {{name: rewrite, model: {folder}}}\n"
    )
    sampling = DiffusionSamplingParams(seed=1, num_frames=3, height=16, width=16)
    made: list[str] = []
    traces: tuple[Path, ...] = ()
    for degree in (1, 2):
        with Omni(deploy_config=deploy, ulysses_degree=degree, torch_profiler_dir=tmp_path / "traces") as omni:
            if degree == 2:
                omni.start_profile()
            (result,) = omni.generate("a kite", sampling)
            traces = omni.stop_profile() if degree == 2 else ()
        assert result.recipe is not None
        made.append(result.recipe.frames_digest)
    assert made[0] == made[1]
    assert len([path for path in traces if ".0.0-" in path.name or ".0.1-" in path.name]) == 2


def test_ranks_end_with_their_engine_however_that_ends(tmp_path):
    source = str(Path(omnireel.errors.__file__).parents[1])
    slow = json.dumps({"step_seconds": 0.2})
    front = subprocess.Popen(
        [sys.executable, "-m", "omnireel.cli", "generate", "a kite", "--model", "toy", "--usp", "2", "--extra-args", slow,
         "--num-inference-steps", "200"],
        cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": os.defpath, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: len(children(front.pid)) >= 2)
    ranks = children(front.pid)
    time.sleep(4)
    front.kill()
    front.wait()
    until(lambda: not [pid for pid in ranks if alive(pid)], 10)
    assert not list(tmp_path.glob("*.mp4"))


def test_a_degree_that_does_not_fit_ends_before_anything_loads(tmp_path):
    code, _, err = command(tmp_path, "generate", "a ball", "--ulysses-degree", "3")
    assert code == 3
    assert "ulysses_degree = 3 (from flag --ulysses-degree) is not allowed; it must divide the 4 attention heads" in err


def test_python_and_a_server_with_a_deploy_file_do_too(tmp_path):
    before = children(), shared_names()
    with Omni("toy", ulysses_degree=2, device="cpu") as omni:
        sampling = DiffusionSamplingParams(seed=1, num_frames=3, height=16, width=16)
        (result,) = omni.generate("a kite", sampling)
    assert result.recipe is not None
    digest = result.recipe.frames_digest
    assert (children(), shared_names()) == before
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("parallel_config:\n  ulysses_degree: 2\n  sequence_parallel_size: 2\n")
    with running(tmp_path / "server", "--deploy-config", str(deploy), backend="mp") as server:
        job = server.ended(server.create(seed=1, num_frames=3, size="16x16")["id"])
        assert job["status"] == "completed", job
        content = server.http.get(f"/v1/videos/{job['id']}/content").content
        pids = children(server.process.pid)
        assert len(pids) >= 2
        assert server.terminate() == 0
    assert digests(content, tmp_path)[0] == digest
    assert not [pid for pid in pids if alive(pid)]
