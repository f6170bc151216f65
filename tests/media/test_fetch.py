"""The door for URLs: what it takes, and what it keeps out."""

from __future__ import annotations

import base64
import contextlib
import http.server
import threading
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from omnireel.errors import MediaUnreadable
from omnireel.media import fetch as fetch_module
from omnireel.media.fetch import fetch, is_url


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers by path; counts what it was asked."""

    asked: list[str]

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header(
                "Location",
                {"/moved": "/file", "/moved-away": "file:///etc/passwd", "/moved-odd": "http://[::1"}.get(
                    self.path, "/moved-on"
                ),
            )
            self.end_headers()
        elif self.path == "/file":
            self.answer(b"content", length=True)
        elif self.path == "/large":
            self.answer(b"x" * 5000, length=True)
        elif self.path == "/endless":
            self.answer(b"x" * 5000, length=False)
        elif self.path == "/short":
            self.send_response(200)
            self.send_header("Content-Length", "50")
            self.end_headers()
            self.wfile.write(b"content")
        elif self.path == "/slow-headers":
            with contextlib.suppress(OSError):
                for letter in b"HTTP/1.1 200 ok\r\n" + 60 * b"a: b\r\n":
                    self.wfile.write(bytes([letter]))
                    time.sleep(0.01)
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(20):
                    self.wfile.write(b"x")
                    time.sleep(0.02)
        else:
            self.send_error(404)

    def answer(self, content: bytes, *, length: bool) -> None:
        self.send_response(200)
        if length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    made.asked = []  # type: ignore[attr-defined]
    # Closing waits for every answer under way, so no socket outlives its test.
    made.daemon_threads = False
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def address(server: http.server.ThreadingHTTPServer, path: str) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}{path}"


def get(url: str, **more: object) -> bytes:
    return fetch(url, name="input_reference", **({"max_bytes": 1000, "allow_private": True} | more))  # type: ignore[arg-type]


def test_content_comes_whole(server):
    assert get(address(server, "/file")) == b"content"


def test_a_redirect_is_followed(server):
    assert get(address(server, "/moved")) == b"content"


@pytest.mark.parametrize("path", ["/large", "/endless"])
def test_more_than_the_limit_is_refused(server, path):
    with pytest.raises(MediaUnreadable, match="larger than 1000 bytes"):
        get(address(server, path))


@pytest.mark.parametrize("path", ["/slow", "/slow-headers"])
def test_a_server_that_dawdles_is_left(server, path):
    start = time.monotonic()
    with pytest.raises(MediaUnreadable, match="too long"):
        get(address(server, path), timeout_seconds=0.1)
    assert time.monotonic() - start < 1.0


def test_a_missing_page_is_told(server):
    with pytest.raises(MediaUnreadable, match="answered 404"):
        get(address(server, "/gone"))


def test_redirects_have_an_end(server):
    with pytest.raises(MediaUnreadable, match="more than 5 redirects"):
        get(address(server, "/moved-round"))


@pytest.mark.parametrize("path", ["/moved-away", "/moved-odd"])
def test_a_redirect_to_what_is_no_web_address_is_not_followed(server, path):
    with pytest.raises(MediaUnreadable, match="no web address"):
        get(address(server, path))


def test_what_is_shorter_than_it_was_said_to_be_is_refused(server):
    with pytest.raises(MediaUnreadable, match="broke off after 7 bytes"):
        get(address(server, "/short"))


def test_a_private_address_is_not_even_asked(server):
    with pytest.raises(MediaUnreadable, match="private address"):
        get(address(server, "/file"), allow_private=False)
    assert server.asked == []


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "2130706433",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
    ],
)
def test_addresses_of_the_inside_are_refused_however_they_are_written(host):
    with pytest.raises(MediaUnreadable, match=r"private address|not known"):
        get(f"http://{host}/x", allow_private=False)


def test_one_private_address_among_public_ones_is_refused(monkeypatch):
    found = [(0, 0, 0, "", ("8.8.8.8", 80)), (0, 0, 0, "", ("10.0.0.1", 80))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    with pytest.raises(MediaUnreadable, match="private address"):
        get("http://two-faced.example/x", allow_private=False)


@pytest.mark.parametrize("url", ["ftp://a/b", "file:///etc/passwd", "http://", "http://a:99999/", "nothing"])
def test_other_schemes_are_refused(url):
    with pytest.raises(MediaUnreadable, match="no URL"):
        get(url)


@pytest.mark.parametrize(
    ("url", "content"),
    [
        ("data:image/png;base64," + base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
        ("data:image/png;name=a;base64,AAECAw%3D%3D", b"\x00\x01\x02\x03"),
        ("data:,a%20b", b"a b"),
    ],
)
def test_data_urls_are_taken(url, content):
    assert get(url) == content


@pytest.mark.parametrize("letters", range(3, 12))
def test_data_urls_are_taken_in_pieces_of_any_size(monkeypatch, letters):
    monkeypatch.setattr(fetch_module, "_PIECE_LETTERS", letters)
    content = bytes(range(64))
    text = base64.b64encode(content).decode()
    broken_up = "\n".join(text[k : k + 7] for k in range(0, len(text), 7))
    assert get("data:;base64," + text) == content
    assert get("data:;base64," + quote(broken_up, safe="")) == content
    assert get("data:," + quote(content, safe="")) == content
    assert get("data:,%zz%4") == b"%zz%4"
    with pytest.raises(MediaUnreadable, match="base64"):
        get("data:;base64,QUFB" + "QQ==" + text)


def test_a_data_url_is_not_given_to_what_remembers_urls(monkeypatch):
    monkeypatch.setattr(fetch_module, "urlsplit", None)
    assert get("DATA:;base64,QUFB") == b"AAA"


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,***",
        "data:image/png",
        "data:;base64,A",
        "data:;base64,QQ==QQ==",
        "data:;base64,QQ=\u00e4",
    ],
)
def test_broken_data_urls_are_refused(url):
    with pytest.raises(MediaUnreadable, match="data URL"):
        get(url)


def test_a_large_data_url_is_refused():
    with pytest.raises(MediaUnreadable, match="larger than"):
        get("data:," + "x" * 2000)


def test_errors_do_not_repeat_the_url(server):
    with pytest.raises(MediaUnreadable) as raised:
        get(address(server, "/secret-token"))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "answer"), [("https://a/b", True), ("data:,x", True), ("a.png", False), ("c:/a.png", False)]
)
def test_urls_are_told_from_files(text, answer):
    assert is_url(text) is answer
