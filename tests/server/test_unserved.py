"""Endpoints that no pipeline can answer yet."""

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path",
    [
        "images/generations",
        "images/edits",
        "audio/speech",
        "audio/voices",
        "chat/completions",
        "lora/load",
        "load_lora_adapter",
    ],
)
def test_what_cannot_be_done_is_told_with_the_model_and_what_can(toy, method, path):
    answer = toy.http.request(method, f"/v1/{path}", json={"model": "toy"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_served")
    (model,) = toy.http.get("/v1/models").json()["data"]
    message = answer.json()["error"]["message"]
    assert message.startswith(f"{model['id']} cannot do this; it does {', '.join(model['tasks'])}, ")
    assert "/v1/videos" in message


def test_no_adapters_are_listed_for_none_are_loaded(toy):
    assert toy.http.get("/v1/lora").json() == {"object": "list", "data": []}
