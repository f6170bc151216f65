"""What probes and Prometheus ask."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.servers import running

import omnireel

pytestmark = pytest.mark.slow


def test_a_server_that_runs_is_ready_and_alive(toy):
    health = toy.http.get("/health").json()
    assert (health["status"], health["reason"], health["hint"]) == ("ok", None, None)
    assert toy.http.get("/health/ready").status_code == 200
    assert toy.http.get("/health/live").json() == {"status": "ok"}
    assert toy.http.get("/version").json() == {"version": omnireel.__version__}


def test_a_server_that_loads_is_alive_and_not_ready(tmp_path):
    with running(tmp_path, model="mini-h3", is_ready=False) as server:
        first = server.http.get("/health")
        assert (first.status_code, first.json()["status"]) == (503, "starting")
        assert first.json()["reason"] == "the model is being loaded"
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


def test_a_profile_is_started_and_stopped_once_and_answers_with_names(tmp_path):
    traces = tmp_path / "traces"
    with running(tmp_path / "server", "--torch-profiler-dir", str(traces), backend="mp") as server:
        assert server.http.post("/stop_profile").json()["error"]["message"] == "no profile is under way"
        # Benchmarks send the request that they are about to measure.
        assert server.http.post("/start_profile", json={"prompt": "a kite"}).json() == {
            "is_profiling": True,
            "files": [],
        }
        again = server.http.post("/start_profile")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
        assert server.ended(server.create(seconds=1)["id"])["status"] == "completed"
        stopped = server.http.post("/stop_profile").json()
        assert stopped == {"is_profiling": False, "files": [path.name for path in traces.iterdir()]}
        assert stopped["files"][0].startswith("trace-0-")
        (traces / stopped["files"][0]).unlink()
        traces.rmdir()
        traces.write_text("")
        broken = server.http.post("/start_profile")
        assert (broken.status_code, broken.json()["error"]["code"]) == (507, "storage_failed")
        assert str(traces) not in broken.text
        assert str(traces) in server.words
        server.http.post("/v1/omni/sleep")
        assert server.http.post("/start_profile").status_code == 503


def test_no_profile_is_started_where_no_folder_was_named(toy):
    answer = toy.http.post("/start_profile")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert "--torch-profiler-dir" in answer.json()["error"]["message"]


def test_a_model_sleeps_and_wakes_and_jobs_wait_meanwhile(toy):
    assert toy.http.post("/v1/omni/sleep").json() == {"is_sleeping": True}
    try:
        health = toy.http.get("/health").json()
        assert (health["status"], "/v1/omni/wakeup" in health["hint"]) == ("asleep", True)
        job = toy.create(seconds=1)
        assert toy.http.post("/v1/omni/sleep").json() == {"is_sleeping": True}
        assert toy.job(job["id"])["status"] == "queued"
    finally:
        assert toy.http.post("/v1/omni/wakeup").json() == {"is_sleeping": False}
    assert toy.ended(job["id"])["status"] == "completed"
    assert toy.http.post("/v1/omni/wakeup").json() == {"is_sleeping": False}
