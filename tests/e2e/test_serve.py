"""`omnireel serve` as a person meets it: curl lines, the OpenAI SDK, signals and restarts."""

import asyncio
import io
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import openai
import pytest
from PIL import Image
from tests.support.servers import digests, running

from omnireel.media.recipe import read_recipe

# The SDK marks the resource as one that OpenAI's own service gives up.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SMALL: dict[str, Any] = {"num_inference_steps": 3, "size": "64x64"}
SLOW: dict[str, Any] = {"seconds": 1, "num_inference_steps": 6, "extra_params": {"step_seconds": 0.3}}


def picture(color, size=(96, 64)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, "png")
    return stream.getvalue()


def size_of(content: bytes) -> tuple[int, int]:
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.video[0]
        return stream.width, stream.height


@pytest.fixture
def sdk(toy):
    with openai.OpenAI(base_url=f"{toy.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def curl(server, tmp_path, *arguments):
    """(status, content) of a curl line."""
    out = tmp_path / "out"
    line = ["curl", "-sS", "-o", str(out), "-w", "%{http_code}", *arguments]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True, env={"PATH": "/usr/bin:/bin"})
    return int(ran.stdout), out.read_bytes()


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not here")


@needs_curl
@pytest.mark.parametrize(
    ("task", "files"),
    [
        ("t2va", []),
        ("fl2va", ["first.png"]),
        ("fl2va", ["first.png", "last.png"]),
        ("ref2va", ["first.png", "last.png"]),
    ],
    ids=["text", "first frame", "both frames", "references"],
)
def test_curl_lines_of_other_servers_make_clips(h3, tmp_path, task, files):
    (tmp_path / "first.png").write_bytes(picture("red"))
    (tmp_path / "last.png").write_bytes(picture("blue"))
    extra = json.dumps({"task": task, "duration": 4, "aspect_ratio": "16:9", "audio_flow_shift": 3.0})
    arguments = [f"{h3.url}/v1/videos/sync", "-F", "prompt=a red ball bounces", "-F", "model=h3", "-F", "fps=24"]
    arguments += ["-F", "num_inference_steps=3", "-F", "flow_shift=12.0", "-F", "seed=7", "-F", f"extra_params={extra}"]
    for name in files:
        arguments += ["-F", f"input_reference=@{tmp_path / name};type=image/png"]
    status, content = curl(h3, tmp_path, *arguments)
    assert status == 200, content
    (tmp_path / "clip.mp4").write_bytes(content)
    recipe = read_recipe(tmp_path / "clip.mp4")
    assert recipe is not None
    assert (recipe.sampling["task"], recipe.sampling["seed"]) == (task, 7)
    assert [item["kind"] for item in recipe.media] == ["image"] * len(files)


def test_form_and_json_make_the_same_clip(h3, tmp_path):
    fields = {
        "prompt": "a red ball",
        "seed": "5",
        "seconds": "4",
        **{name: str(value) for name, value in SMALL.items()},
    }
    form = h3.http.post("/v1/videos/sync", data={**fields, "extra_params[task]": "t2va"})
    body = {"prompt": "a red ball", "seed": 5, "seconds": 4.0, **SMALL, "extra_params": {"task": "t2va"}}
    as_json = h3.http.post("/v1/videos/sync", json=body)
    assert form.status_code == as_json.status_code == 200
    assert digests(form.content, tmp_path) == digests(as_json.content, tmp_path)
    assert size_of(form.content) == (64, 64)


def test_answers_to_a_synchronous_request_tell_their_figures(toy):
    answer = toy.http.post("/v1/videos/sync", json={"prompt": "a kite", "seconds": 1})
    assert answer.headers["content-type"] == "video/mp4"
    assert answer.headers["x-model"] == "toy"
    assert answer.headers["x-request-id"].startswith("req_")
    assert float(answer.headers["x-inference-time-s"]) > 0
    assert {"denoise", "decode", "mux"} <= json.loads(answer.headers["x-stage-durations"]).keys()
    assert float(answer.headers["x-peak-memory-mb"]) > 0
    until = time.monotonic() + 10
    while answer.headers["x-job-id"] in toy.folders():
        assert time.monotonic() < until


def test_the_sdk_creates_polls_and_downloads(sdk):
    video = sdk.videos.create_and_poll(prompt="a kite", seconds="1", size="64x32", poll_interval_ms=20)
    assert (video.status, video.progress, video.size, video.seconds) == ("completed", 100, "64x32", "1")
    assert size_of(sdk.videos.download_content(video.id).read()) == (64, 32)
    thumbnail = Image.open(io.BytesIO(sdk.videos.download_content(video.id, variant="thumbnail").read()))
    assert (thumbnail.format, thumbnail.size) == ("WEBP", (64, 32))
    sheet = Image.open(io.BytesIO(sdk.videos.download_content(video.id, variant="spritesheet").read()))
    assert (sheet.format, sheet.size) == ("JPEG", (5 * 64, 2 * 32))


def test_the_sdk_lists_pages_and_deletes(sdk):
    ids = [sdk.videos.create(prompt=f"kite {k}", seconds="1").id for k in range(3)]
    listed = [video.id for video in sdk.videos.list(limit=2, order="desc") if video.id in ids]
    assert listed == ids[::-1]
    deleted = sdk.videos.delete(ids[0])
    assert (deleted.id, deleted.deleted, deleted.object) == (ids[0], True, "video.deleted")
    with pytest.raises(openai.NotFoundError):
        sdk.videos.retrieve(ids[0])


def test_the_sdk_sees_a_failed_job_instead_of_an_exception(sdk):
    video = sdk.videos.create_and_poll(
        prompt="a kite", extra_body={"extra_params": {"fail": "decode"}}, poll_interval_ms=20
    )
    assert video.status == "failed"
    assert video.error is not None
    assert video.error.code == "engine_error"
    with pytest.raises(openai.UnprocessableEntityError):
        sdk.videos.download_content(video.id)


def test_the_sdk_sends_nested_and_typed_fields(sdk):
    video = sdk.videos.create(
        prompt="a kite", seconds="2", extra_body={"seed": 11, "extra_params": {"step_seconds": 0.01}}
    )
    assert (video.seed, video.num_frames) == (11, 48)


def test_the_sdk_is_told_which_field_is_wrong(sdk):
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.videos.create(prompt="a kite", extra_body={"num_inference_step": 4})
    assert caught.value.param == "num_inference_step"
    assert "did you mean num_inference_steps?" in caught.value.message


def test_the_sdk_uploads_a_first_frame(h3):
    client: Any
    with openai.OpenAI(base_url=f"{h3.url}/v1", api_key="none", max_retries=0) as client:
        video = client.videos.create_and_poll(
            prompt="a red ball", model="other", seconds="4", input_reference=("first.png", picture("red"), "image/png"),
            extra_body={"num_inference_steps": 2}, poll_interval_ms=50,
        )  # fmt: skip
        assert (video.status, video.model, video.task) == ("completed", "h3", "fl2va")


def test_the_sdk_remixes_edits_and_extends_a_clip(h3):
    client: Any
    with openai.OpenAI(base_url=f"{h3.url}/v1", api_key="none", max_retries=0) as client:
        first = client.videos.create_and_poll(
            prompt="a red ball", seconds="4", size="64x64", extra_body={"num_inference_steps": 2}, poll_interval_ms=50
        )
        once = {"Idempotency-Key": "remix"}
        remix = client.videos.remix(first.id, prompt="a blue ball", extra_headers=once)
        assert client.videos.remix(first.id, prompt="a blue ball", extra_headers=once).id == remix.id
        clip = ("clip.mp4", client.videos.download_content(first.id).read(), "video/mp4")
        edit = client.videos.edit(prompt="a green ball", video=clip, extra_body=SMALL)
        extension = client.videos.extend(prompt="it falls", video=clip, seconds="4", extra_body=SMALL)
        ended = client.videos.poll(remix.id, poll_interval_ms=50)
        for video in (edit, extension):
            client.videos.delete(video.id)
    assert (ended.status, ended.remixed_from_video_id, ended.size) == ("completed", first.id, "64x64")
    assert {video.task for video in (remix, edit, extension)} == {"ref2va"}


def test_the_asynchronous_sdk_does_the_same(toy):
    async def work():
        client: Any
        async with openai.AsyncOpenAI(base_url=f"{toy.url}/v1", api_key="none", max_retries=0) as client:
            videos = await asyncio.gather(
                *(client.videos.create_and_poll(prompt="a kite", seconds="1", poll_interval_ms=20) for _ in range(3))
            )
            listed = {video.id async for video in client.videos.list(limit=100)}
            content = await (await client.videos.download_content(videos[0].id)).aread()
            await client.videos.delete(videos[0].id)
            return videos, listed, content

    videos, listed, content = asyncio.run(work())
    assert {video.status for video in videos} == {"completed"}
    assert {video.id for video in videos} <= listed
    assert size_of(content) == (48, 32)


def test_the_sdk_lists_models(sdk):
    assert [model.id for model in sdk.models.list()] == ["toy"]
    assert sdk.models.retrieve("toy").id == "toy"


def events_of(server, job_id):
    """(event, data) of a stream that ends by itself."""
    with server.http.stream("GET", f"/v1/videos/{job_id}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = "".join(answer.iter_text())
    blocks = [block.split("\n", 1) for block in text.strip().split("\n\n") if block.startswith("event: ")]
    return [(head.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for head, data in blocks]


def test_events_tell_steps_previews_and_the_end(h3):
    job = h3.create("a red ball", seconds=4, size="64x64", num_inference_steps=7)
    events = events_of(h3, job["id"])
    steps = [data["step"] for name, data in events if name == "progress"]
    assert steps == sorted(steps)
    assert any(data.get("preview", "").startswith("data:image/jpeg;base64,") for name, data in events)
    assert events[-1][0] == "completed"
    assert events[-1][1]["progress"] == 100


def test_a_job_is_cancelled_within_a_step_and_stays_on_record(toy):
    job = toy.create(**SLOW)
    toy.until(job["id"], "in_progress")
    answer = toy.http.post(f"/v1/videos/{job['id']}/cancel")
    assert answer.json()["status"] == "cancelled"
    assert toy.ended(toy.create(seconds=1)["id"])["status"] == "completed"
    assert toy.job(job["id"])["status"] == "cancelled"
    assert toy.http.get(f"/v1/videos/{job['id']}/content").status_code == 409


def test_a_running_job_can_be_deleted_with_its_files(toy):
    job = toy.create(**SLOW)
    toy.until(job["id"], "in_progress")
    assert toy.http.delete(f"/v1/videos/{job['id']}").json()["deleted"] is True
    assert toy.http.get(f"/v1/videos/{job['id']}").status_code == 404
    toy.ended(toy.create(seconds=1)["id"])
    assert job["id"] not in toy.folders()


def test_whoever_hangs_up_gives_a_synchronous_request_up(toy):
    before = toy.folders()
    line = json.dumps({"prompt": "a kite", **SLOW, "num_inference_steps": 200})
    with pytest.raises(Exception, match="timed out"):
        toy.http.post("/v1/videos/sync", content=line, headers={"content-type": "application/json"}, timeout=1.0)
    # The step under way is waited for, no other: the next job does not stand behind a minute of them.
    assert toy.ended(toy.create(seconds=1)["id"])["status"] == "completed"
    assert len(toy.folders() - before) == 1


def test_jobs_survive_a_kill_and_none_is_run_twice(tmp_path):
    with running(tmp_path) as server:
        done = server.ended(server.create(seconds=1, seed=3)["id"])
        clip = server.http.get(f"/v1/videos/{done['id']}/content").content
        slow = server.create(**SLOW, seed=4)
        waiting = server.create(seconds=1, seed=5)
        server.until(slow["id"], "in_progress")
        server.kill()
    with running(tmp_path) as server:
        assert server.job(done["id"])["completed_at"] == done["completed_at"]
        assert server.http.get(f"/v1/videos/{done['id']}/content").content == clip
        assert server.ended(slow["id"])["seed"] == 4
        assert server.ended(waiting["id"])["status"] == "completed"
        listed = server.http.get("/v1/videos", params={"order": "asc"}).json()["data"]
        assert [job["id"] for job in listed] == [done["id"], slow["id"], waiting["id"]]


def test_a_job_can_be_set_to_fail_rather_than_run_again(tmp_path):
    with running(tmp_path, "--interrupted-jobs", "fail") as server:
        slow = server.create(**SLOW)
        server.until(slow["id"], "in_progress")
        server.kill()
    with running(tmp_path, "--interrupted-jobs", "fail") as server:
        job = server.job(slow["id"])
        assert (job["status"], job["error"]["code"]) == ("failed", "interrupted")


def test_sigterm_lets_the_running_job_finish_and_parks_the_rest(tmp_path):
    with running(tmp_path) as server:
        slow, waiting = server.create(**SLOW), server.create(seconds=1)
        server.until(slow["id"], "in_progress")
        server.process.send_signal(signal.SIGTERM)
        while server.http.get("/health").status_code == 200:
            time.sleep(0.01)
        answer = server.http.post("/v1/videos", json={"prompt": "too late"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert server.process.wait(30) == 0
        assert "Traceback" not in server.words
    with running(tmp_path) as server:
        assert server.job(slow["id"])["status"] == "completed"
        assert server.ended(waiting["id"])["status"] == "completed"


def test_sigterm_parks_what_takes_longer_than_the_bound(tmp_path):
    with running(tmp_path, "--abort-timeout", "0.1") as server:
        slow = server.create(**{**SLOW, "seed": 9})
        server.until(slow["id"], "in_progress")
        assert server.terminate() == 0
    with running(tmp_path) as server:
        job = server.ended(slow["id"])
        assert (job["status"], job["seed"]) == ("completed", 9)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can limit another process")
def test_a_full_disk_is_told_and_the_server_goes_on(tmp_path):
    with running(tmp_path) as server:
        running_one = server.create(**SLOW)
        server.until(running_one["id"], "in_progress")
        before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        # No file may grow: what a full disk or one that has become read-only does to whoever writes.
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, before[1]))
        answer = server.http.post("/v1/videos", json={"prompt": "a kite"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_failed")
        assert str(tmp_path) not in answer.text
        upload = server.http.post("/v1/files", files={"file": ("a.png", picture("red"), "image/png")})
        assert upload.status_code == 507
        large = server.http.post("/v1/files", files={"file": ("a.bin", b"x" * 3 * 2**20, "image/png")})
        assert (large.status_code, large.json()["error"]["code"]) == (507, "storage_failed")
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/v1/videos").status_code == 200
        time.sleep(2.0)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)
        job = server.ended(running_one["id"])
        assert (job["status"], job["error"]["code"]) == ("failed", "storage_failed")
        assert str(tmp_path) not in job["error"]["message"]
        assert server.ended(server.create(seconds=1)["id"])["status"] == "completed"
        assert "Traceback" not in server.words


def test_odd_and_swollen_heads_leave_the_server_alone(toy):
    host, port = toy.url.removeprefix("http://").split(":")
    said_before = len(toy.words)
    for head in (
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00nonsense\r\n\r\n",
        b"POST /v1/videos HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/videos HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/videos/\xff%ff%00 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection, suppress(ConnectionError):
            connection.sendall(head)
            assert re.match(rb"HTTP/1.1 4\d\d ", connection.recv(200) or b"HTTP/1.1 400 ")
    assert toy.http.get("/health").status_code == 200
    assert "Traceback" not in toy.words[said_before:]


def test_as_many_jobs_run_at_a_time_as_the_engine_steps(tmp_path):
    flags = ("--max-num-seqs", "3", "--step-execution", "--max-queue", "1")
    with running(tmp_path, *flags) as server:
        jobs = [server.create(**SLOW, seed=k)["id"] for k in range(8)]
        most, found = 0, [server.job(job_id) for job_id in jobs]
        while any(job["status"] != "completed" for job in found):
            found = [server.job(job_id) for job_id in jobs]
            most = max(most, sum(job["status"] == "in_progress" and job["progress"] > 0 for job in found))
            assert not [job for job in found if job["status"] == "failed"]
        assert most >= 2


def worker_of(server) -> int:
    """The process of the model."""
    places = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    (child,) = [int(child) for place in places for child in place.read_text().split()]
    return child


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")
def test_a_worker_that_is_killed_costs_nothing_but_time(tmp_path):
    with running(tmp_path, backend="mp") as server:
        slow, waiting = server.create(**SLOW, seed=4), server.create(seconds=1)
        server.until(slow["id"], "in_progress")
        os.kill(worker_of(server), signal.SIGKILL)
        assert server.ended(slow["id"])["status"] == "completed", server.words
        assert server.ended(waiting["id"])["status"] == "completed"
        server.wait_until_ready()
        worker = worker_of(server)
        assert server.terminate() == 0
        assert not Path(f"/proc/{worker}").exists()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")
def test_a_server_whose_workers_are_given_up_says_so_and_hands_out_what_is_finished(tmp_path):
    flags = ("--max-worker-deaths", "1", "--no-exit-on-engine-failure")
    with running(tmp_path, *flags, backend="mp") as server:
        done = server.ended(server.create(seconds=1)["id"])
        os.kill(worker_of(server), signal.SIGKILL)
        until = time.monotonic() + 30
        while (health := server.http.get("/health").json())["status"] != "failed":
            assert time.monotonic() < until, health
            time.sleep(0.05)
        assert server.http.get("/health").status_code == 503
        assert "SIGKILL" in health["reason"]
        assert "restart" in health["hint"]
        live = server.http.get("/health/live")
        assert (live.status_code, live.json()) == (503, {"status": "failed"})
        refused = server.http.post("/v1/videos", json={"prompt": "x"})
        assert (refused.status_code, health["reason"] in refused.json()["error"]["message"]) == (503, True)
        assert server.http.get(f"/v1/videos/{done['id']}/content").status_code == 200
        assert server.terminate() == 0


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")
def test_a_server_whose_workers_are_given_up_ends_and_the_next_one_runs_what_waits(tmp_path):
    with running(tmp_path, "--max-worker-deaths", "1", backend="mp") as server:
        slow, waiting = server.create(**SLOW, seed=4), server.create(seconds=1)
        server.until(slow["id"], "in_progress")
        os.kill(worker_of(server), signal.SIGKILL)
        assert server.process.wait(30) == 4
        assert "error: the server ends, for every replica is given up: " in server.words
    with running(tmp_path, backend="mp") as server:
        assert server.ended(waiting["id"])["status"] == "completed"
        assert server.ended(slow["id"])["status"] in ("completed", "failed")
