"""What probes and Prometheus ask."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.servers import running

import omnireel

pytestmark = pytest.mark.slow


def test_a_server_that_runs_is_ready_and_alive(toy):
    assert toy.http.get("/health").json()["status"] == "ok"
    assert toy.http.get("/health/ready").status_code == 200
    assert toy.http.get("/health/live").json() == {"status": "ok"}
    assert toy.http.get("/version").json() == {"version": omnireel.__version__}


def test_a_server_that_loads_is_alive_and_not_ready(tmp_path):
    with running(tmp_path, model="mini-h3", is_ready=False) as server:
        first = server.http.get("/health")
        assert (first.status_code, first.json()["status"]) == (503, "starting")
        assert server.http.get("/health/live").status_code == 200
        assert server.create(num_inference_steps=2, size="64x64", seconds=4)["status"] == "queued"


def test_figures_are_in_the_words_of_prometheus(toy):
    toy.ended(toy.create(seconds=1)["id"])
    answer = toy.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert all(name.startswith("omnireel_") for name in families)
    done = [sample.value for sample in families["omnireel_jobs"].samples if sample.labels.get("status") == "completed"]
    assert done[0] >= 1
    assert families["omnireel_step_seconds"].samples
    assert families["omnireel_jobs_queued"].samples[0].value == 0


def test_a_model_sleeps_and_wakes_and_jobs_wait_meanwhile(toy):
    assert toy.http.post("/v1/omni/sleep").json() == {"is_sleeping": True}
    try:
        assert toy.http.get("/health").json()["status"] == "asleep"
        job = toy.create(seconds=1)
        assert toy.http.post("/v1/omni/sleep").json() == {"is_sleeping": True}
        assert toy.job(job["id"])["status"] == "queued"
    finally:
        assert toy.http.post("/v1/omni/wakeup").json() == {"is_sleeping": False}
    assert toy.ended(job["id"])["status"] == "completed"
    assert toy.http.post("/v1/omni/wakeup").json() == {"is_sleeping": False}
