"""Server-sent events."""

import json

import pytest

pytestmark = pytest.mark.slow


def told(server, job_id):
    with server.http.stream("GET", f"/v1/videos/{job_id}/events") as answer:
        assert answer.status_code == 200
        return [line for line in answer.iter_lines() if line]


def test_a_job_that_has_ended_is_told_at_once(toy):
    job = toy.ended(toy.create(seconds=1)["id"])
    lines = told(toy, job["id"])
    assert lines[-2] == "event: completed"
    assert json.loads(lines[-1].removeprefix("data: ")) == job


def test_a_cancelled_job_ends_its_stream(toy):
    job = toy.create(seconds=1, num_inference_steps=50, extra_params={"step_seconds": 0.1})
    with toy.http.stream("GET", f"/v1/videos/{job['id']}/events") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: progress"
        toy.http.post(f"/v1/videos/{job['id']}/cancel")
        assert "event: cancelled" in list(lines)


def test_a_deleted_job_ends_its_stream(toy):
    job = toy.create(seconds=1, num_inference_steps=50, extra_params={"step_seconds": 0.1})
    with toy.http.stream("GET", f"/v1/videos/{job['id']}/events") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: progress"
        toy.http.delete(f"/v1/videos/{job['id']}")
        assert "event: deleted" in list(lines)


def test_an_unknown_job_has_no_stream(toy):
    assert toy.http.get("/v1/videos/video_0/events").status_code == 404
