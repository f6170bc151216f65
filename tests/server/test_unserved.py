"""Endpoints that no pipeline can answer yet."""

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "path", ["images/generations", "images/edits", "audio/speech", "chat/completions", "lora/load"]
)
def test_what_cannot_be_done_is_told_with_what_can(toy, path):
    answer = toy.http.post(f"/v1/{path}", json={"model": "toy"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_served")
    assert "/v1/videos" in answer.json()["error"]["message"]
