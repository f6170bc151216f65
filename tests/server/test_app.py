"""The app as a whole: its document, its errors, and pages of other origins."""

import pytest
from tests.support.servers import generated_requests, running

pytestmark = pytest.mark.slow


def test_the_document_describes_what_is_there(toy):
    made = toy.http.get("/openapi.json").json()
    assert {"/v1/videos", "/v1/videos/sync", "/v1/videos/{video_id}/content", "/v1/models", "/health"} <= made[
        "paths"
    ].keys()
    create = made["paths"]["/v1/videos"]["post"]
    assert set(create["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
    assert "HTTPValidationError" not in str(made)
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                assert answer["description"], (path, method, status)


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("PUT", "/v1/videos", 405), ("GET", "/docs", 404)]
)
def test_every_error_has_the_same_shape(toy, method, path, status):
    answer = toy.http.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_no_generated_request_meets_an_undocumented_answer(tmp_path):
    with running(tmp_path, "--max-jobs", "5", "--media-timeout", "2", "--video-sync-timeout", "2") as server:
        assert generated_requests(server, 3, 4, "fuzzing") > 50
        assert "Traceback" not in server.words


def test_pages_of_listed_origins_may_call_and_need_a_key_only_then(tmp_path):
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    flags = ("--cors-origins", "https://a.example", "--api-key", "k")
    with running(tmp_path, *flags) as server:
        asked = server.http.options("/v1/videos", headers={"Origin": "https://a.example", **preflight})
        assert asked.headers["access-control-allow-origin"] == "https://a.example"
        other = server.http.options("/v1/videos", headers={"Origin": "https://b.example", **preflight})
        assert "access-control-allow-origin" not in other.headers
        assert server.http.get("/v1/videos").status_code == 401
        signed = server.http.get("/v1/videos", headers={"Authorization": "Bearer k", "Origin": "https://a.example"})
        assert signed.status_code == 200
        assert "X-Request-Id" in signed.headers["access-control-expose-headers"]
        assert "k" not in server.words.split()
