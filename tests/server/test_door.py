"""What every request passes: keys, limits of bodies, and what is told of bugs."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

import omnireel.server.door as room
from omnireel.errors import InvalidRequest
from omnireel.server.door import Door
from omnireel.server.keys import keys_of
from omnireel.server.measures import Measures


def passed(app, *, keys=(), path="/v1/videos", headers=(), origins=None, pieces: Sequence[bytes | None] = (b"",)):
    """(status, headers, body) of one request whose body comes in these pieces; None never comes."""
    service: Any = SimpleNamespace(
        keys=keys_of(keys, None), measures=Measures(), spec=SimpleNamespace(max_upload_mib=1, cors_origins=origins)
    )
    left, sent = list(pieces), []

    async def receive():
        piece = left.pop(0) if left else None
        if piece is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
    asyncio.run(Door(app, service=service)(scope, receive, send))
    start = next(message for message in sent if message["type"] == "http.response.start")
    body = b"".join(message.get("body", b"") for message in sent)
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body.decode(), service


async def reads(scope, receive, send):
    """Takes the whole body and tells its length and its owner."""
    total, more = 0, True
    while more:
        message = await receive()
        total, more = total + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{total} {scope.get('omnireel.owner')}".encode()})


def bearer(key):
    return [(b"authorization", f"Bearer {key}".encode())]


def test_answers_have_an_id_of_their_own():
    status, headers, body, _ = passed(reads, pieces=[b"ab", b"c"])
    assert (status, body) == (200, "3 ")
    assert headers["x-request-id"].startswith("req_")
    assert headers["x-content-type-options"] == "nosniff"


def test_a_key_opens_and_names_its_owner():
    status, _, body, _ = passed(reads, keys=["k"], headers=bearer("k"))
    assert status == 200
    assert len(body.split()[1]) == 16


@pytest.mark.parametrize(
    "path", ["/v1/videos", "/metrics", "/openapi.json", "/version", "/health/../v1/videos", "//health"]
)
def test_without_a_key_only_probes_are_answered(path):
    assert passed(reads, keys=["k"], path=path)[0] == 401
    assert passed(reads, keys=["k"], path=path, headers=bearer("x"))[0] == 401
    assert passed(reads, keys=["k"], path="/health/live")[0] == 200


def test_a_body_that_says_it_is_too_large_is_not_read():
    assert passed(reads, headers=[(b"content-length", str(2**20 + 1).encode())], pieces=[None])[0] == 413


def test_a_body_that_grows_too_large_is_read_no_further():
    assert passed(reads, pieces=[b"x" * 2**19] * 3 + [None])[0] == 413


def test_a_body_that_does_not_come_is_given_up(monkeypatch):
    monkeypatch.setattr(room, "BODY_SECONDS", 0.05)
    assert passed(reads, pieces=[b"x", None])[0] == 408


def test_a_bug_tells_the_requests_id_and_nothing_else(caplog):
    async def broken(scope, receive, send):
        raise RuntimeError("/a/secret/path")

    status, headers, body, service = passed(broken)
    assert status == 500
    assert headers["x-request-id"] in body
    assert "secret" not in body
    assert "secret" in caplog.text
    assert 'status="500"' in service.measures.text()


def test_an_error_behind_the_door_is_translated():
    async def refuses(scope, receive, send):
        raise InvalidRequest("seed", 1, "no")

    assert passed(refuses)[0] == 400


def test_a_client_that_went_away_is_no_bug(caplog):
    async def gone(scope, receive, send):
        raise ClientDisconnect

    service: Any = SimpleNamespace(keys=keys_of((), None), measures=Measures(), spec=SimpleNamespace(max_upload_mib=1))

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        raise OSError("broken pipe")

    scope: Any = {"type": "http", "method": "POST", "path": "/", "headers": []}
    for app in (gone, lambda scope, receive, send: send({"type": "http.response.start", "status": 200, "headers": []})):
        asyncio.run(Door(app, service=service)(scope, receive, send))
    assert not caplog.records
    assert 'status="499"' in service.measures.text()


@pytest.mark.parametrize(
    ("site", "keys", "origins", "status"),
    [
        ("cross-site", (), None, 401),
        ("cross-site", (), ("https://b",), 401),
        ("cross-site", (), ("https://a",), 200),
        ("cross-site", (), ("*",), 200),
        ("cross-site", ("k",), None, 200),
        ("same-origin", (), None, 200),
        ("none", (), None, 200),
    ],
)
def test_a_page_of_elsewhere_cannot_use_a_server_without_keys_through_its_visitor(site, keys, origins, status):
    headers = [(b"sec-fetch-site", site.encode()), (b"origin", b"https://a"), *bearer("k")]
    told, _, body, _ = passed(reads, keys=keys, headers=headers, origins=origins)
    assert told == status
    assert ("--cors-origins" in body) == (status == 401)


def test_a_body_with_two_ends_ends_the_connection():
    headers = [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")]
    status, answer, body, _ = passed(reads, headers=headers, pieces=[b"abc"])
    assert (status, answer["connection"]) == (400, "close")
    assert "Transfer-Encoding" in body
