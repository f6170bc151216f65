"""Errors as answers."""

import json

import pytest

from omnireel import errors
from omnireel.server import problem


def told(error):
    answer = problem.response(error)
    return answer.status_code, json.loads(bytes(answer.body))["error"], answer.headers


@pytest.mark.parametrize(
    ("error", "status", "kind", "param"),
    [
        (errors.InvalidRequest("seed", "x", "a number"), 400, "invalid_request_error", "seed"),
        (
            errors.MediaUnreadable("input_reference[1]", "is no picture"),
            400,
            "invalid_request_error",
            "input_reference[1]",
        ),
        (errors.Unauthorized("an API key is needed"), 401, "authentication_error", None),
        (errors.UnknownJob("there is no video 'a'"), 404, "not_found_error", None),
        (errors.UnknownModel("sora-2", ["h3"]), 404, "not_found_error", "model"),
        (errors.QueueFull(3, 2.2), 429, "rate_limit_error", None),
        (errors.StorageFailed("full"), 507, "server_error", None),
        (errors.Unavailable("the server is starting"), 503, "server_error", None),
    ],
)
def test_an_error_keeps_its_status_and_words(error, status, kind, param):
    code, body, _ = told(error)
    assert (code, body["type"], body["param"], body["code"]) == (status, kind, param, error.code)
    assert body["message"].startswith(error.message)


def test_the_hint_is_in_the_message():
    assert told(errors.UnknownJob("no", hint="look again"))[1]["message"] == "no (look again)"


def test_what_a_worker_wrote_before_it_died_is_not_told():
    _, body, _ = told(errors.WorkerDied("0", "was killed", ["File /home/me/secret.py, line 3"]))
    assert body["message"].startswith("worker 0 was killed (send the request again")
    assert "secret" not in body["message"]


def test_what_everybody_hears_of_a_worker_s_death_has_no_path_and_no_line_of_its_log():
    died = "worker 0 could not be started again: '/home/me/weights/a.safetensors': is cut short at 3/4; its last lines: key=1"
    assert problem.line(died) == "worker 0 could not be started again: '[path]': is cut short at 3/4"


def test_headers_tell_when_to_come_back_and_how_to_sign_in():
    assert told(errors.QueueFull(3, 2.2))[2]["retry-after"] == "3"
    assert told(errors.Unavailable("no"))[2]["retry-after"] == str(problem.RETRY_SECONDS)
    assert told(errors.Unauthorized("no"))[2]["www-authenticate"] == "Bearer"


def test_every_status_that_is_documented_has_words():
    assert set(problem.answers(404, 499)) == {400, 401, 404, 408, 413, 499, 500, 503, 507}
