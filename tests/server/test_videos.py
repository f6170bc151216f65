"""/v1/videos on a real server: what is told of each state, pages, and repeated requests."""

import time
from typing import Any

import pytest
from tests.support.servers import digests, running

pytestmark = pytest.mark.slow

ENDLESS: dict[str, Any] = {"seconds": 1, "num_inference_steps": 200, "extra_params": {"step_seconds": 0.2}}


@pytest.fixture(scope="module")
def done(toy):
    return toy.ended(toy.create(seconds="1.5", seed=2**62, user="u1")["id"])


@pytest.fixture
def endless(toy):
    job = toy.create(**ENDLESS)
    yield job
    toy.http.delete(f"/v1/videos/{job['id']}")


def error_of(answer):
    return answer.status_code, answer.json()["error"]["param"]


def test_a_finished_job_tells_what_was_settled_and_measured(done):
    assert done["status"] == "completed"
    assert (done["seconds"], done["num_frames"], done["fps"], done["size"]) == ("1.5", 36, 24.0, "48x32")
    assert (done["seed"], done["user"], done["task"], done["progress"]) == (2**62, "u1", "t2va", 100)
    assert done["created_at"] <= done["started_at"] <= done["completed_at"]
    assert done["inference_time_s"] > 0
    assert done["stage_durations"].keys() >= {"denoise", "mux"}
    assert done["metrics"] is None


def test_metrics_come_where_they_are_asked_for(toy):
    job = toy.ended(toy.create(seconds=1, return_stage_metrics=True)["id"])
    assert job["metrics"]["size_bytes"] > 0


@pytest.mark.parametrize("path", ["", "/content", "/events"])
def test_an_unknown_video_is_404(toy, path):
    assert toy.http.get(f"/v1/videos/video_0{path}").status_code == 404
    assert toy.http.delete("/v1/videos/video_0").status_code == 404
    assert toy.http.post("/v1/videos/video_0/cancel").status_code == 404


def test_content_of_a_job_that_is_not_ready_is_409(toy, endless):
    assert toy.http.get(f"/v1/videos/{endless['id']}/content").status_code == 409
    answer = toy.http.get(f"/v1/videos/{endless['id']}")
    assert int(answer.headers["openai-poll-after-ms"]) > 0


def test_content_of_a_failed_job_is_422_and_the_job_itself_200(toy):
    job = toy.ended(toy.create(extra_params={"fail": "step:2"})["id"])
    assert (job["status"], job["error"]["code"]) == ("failed", "engine_error")
    assert toy.http.get(f"/v1/videos/{job['id']}/content").status_code == 422


def test_a_client_mistake_found_by_the_worker_is_one_of_the_client(toy):
    answer = toy.http.post("/v1/videos/sync", json={"prompt": "x", "extra_params": {"fail": "client"}})
    assert answer.status_code == 400


def test_parts_of_a_clip_can_be_had(toy, done):
    whole = toy.http.get(f"/v1/videos/{done['id']}/content")
    part = toy.http.get(f"/v1/videos/{done['id']}/content", headers={"Range": "bytes=4-11"})
    assert (part.status_code, part.content) == (206, whole.content[4:12])
    assert toy.http.get(f"/v1/videos/{done['id']}/content", headers={"Range": "bytes=99999999-"}).status_code == 416
    assert toy.http.get(f"/v1/videos/{done['id']}/content", params={"variant": "sound"}).status_code == 400


def test_the_same_seed_gives_the_same_clip(toy, done, tmp_path):
    again = toy.ended(toy.create(seconds=1.5, seed=2**62)["id"])
    contents = [toy.http.get(f"/v1/videos/{job['id']}/content").content for job in (done, again)]
    assert digests(contents[0], tmp_path) == digests(contents[1], tmp_path)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": " \n"}, "prompt"),
        ({"prompt": "x", "seconds": 99}, "seconds"),
        ({"prompt": "x", "size": "7x7"}, "height"),
        ({"prompt": "x", "num_frame": 3}, "num_frame"),
        ({"prompt": "x", "negative_prompt": "y"}, "negative_prompt"),
        ({"prompt": "x", "extra_params": {"taks": 1}}, "extra_params.taks"),
        ({"prompt": "x", "extra_params": {"fail": "never"}}, "extra_params.fail"),
    ],
)
def test_a_wrong_field_is_named(toy, body, param):
    assert error_of(toy.http.post("/v1/videos", json=body)) == (400, param)
    assert error_of(toy.http.post("/v1/videos/sync", json=body)) == (400, param)


def test_another_model_is_404_and_its_field_named(toy):
    assert error_of(toy.http.post("/v1/videos", json={"prompt": "x", "model": "sora-2"})) == (404, "model")


def test_whole_numbers_of_a_form_may_have_a_point(toy):
    files = {
        name: (None, text) for name, text in {"prompt": "x", "seconds": "1.0", "num_inference_steps": "4.0"}.items()
    }
    job = toy.http.post("/v1/videos", files=files).json()
    assert (job["num_inference_steps"], job["seconds"]) == (4, "1")


@pytest.mark.parametrize(
    "query", [{"limit": 101}, {"limit": -1}, {"limit": "x"}, {"order": "up"}, {"after": "video_0"}]
)
def test_a_wrong_page_is_400(toy, query):
    status, param = error_of(toy.http.get("/v1/videos", params=query))
    assert (status, param) == (400, next(iter(query)))


def test_a_repeated_request_with_its_key_is_one_job(toy):
    headers = {"Idempotency-Key": "once"}
    first, second = (
        toy.http.post("/v1/videos", json={"prompt": "once", "seconds": 1}, headers=headers) for _ in range(2)
    )
    assert first.json()["id"] == second.json()["id"]
    assert toy.http.post("/v1/videos", json={"prompt": "twice"}, headers=headers).status_code == 409


def test_edits_need_a_clip_and_a_model_that_takes_one(toy, done):
    assert error_of(toy.http.post("/v1/videos/edits", json={"prompt": "x"})) == (400, "video")
    answer = toy.http.post(f"/v1/videos/{done['id']}/remix", json={"prompt": "x"})
    assert (answer.status_code, "takes no media" in answer.text) == (400, True)


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A server with short limits."""
    flags = ("--max-jobs", "2", "--file-ttl", "0.5", "--video-sync-timeout", "0.5")
    with running(tmp_path_factory.mktemp("strict"), *flags) as server:
        yield server


def test_a_full_line_is_429_with_the_time_to_come_back(strict):
    jobs = [strict.create(**ENDLESS)["id"]]
    strict.until(jobs[0], "in_progress")
    jobs += [strict.create()["id"] for _ in range(2)]
    answer = strict.http.post("/v1/videos", json={"prompt": "one too many"})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    for job_id in reversed(jobs):
        strict.http.delete(f"/v1/videos/{job_id}")


def test_one_key_cannot_fill_the_line_of_another(tmp_path):
    with running(tmp_path, "--api-key", "a,b", "--max-jobs-per-key", "1") as server:
        of = {key: {"Authorization": f"Bearer {key}"} for key in ("a", "b")}
        statuses = [
            server.http.post("/v1/videos", json={"prompt": "x", **ENDLESS}, headers=of[key]).status_code
            for key in ("a", "a", "b")
        ]
        assert statuses == [200, 429, 200]


def test_files_go_when_their_time_is_over(strict):
    job = strict.ended(strict.create(seconds=1)["id"])
    assert job["expires_at"] is not None
    while job["id"] in strict.folders():
        time.sleep(0.05)
    assert strict.http.get(f"/v1/videos/{job['id']}/content").status_code == 410
    assert strict.job(job["id"])["status"] == "completed"


def test_a_synchronous_request_waits_no_longer_than_its_bound(strict):
    answer = strict.http.post("/v1/videos/sync", json={"prompt": "x", **ENDLESS})
    assert answer.status_code == 504
    assert strict.ended(strict.create(seconds=1)["id"])["status"] == "completed"
