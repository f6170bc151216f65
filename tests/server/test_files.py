"""/v1/files."""

import base64
import io

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

STREAM = io.BytesIO()
Image.new("RGB", (20, 10), "red").save(STREAM, "png")
PICTURE = STREAM.getvalue()


def uploaded(server, content=PICTURE, name="a.png", **data):
    return server.http.post("/v1/files", files={"file": (name, content, "image/png")}, data=data)


def test_a_file_is_kept_told_and_forgotten(toy):
    stored = uploaded(toy, purpose="vision").json()
    assert (stored["object"], stored["bytes"], stored["filename"], stored["purpose"]) == (
        "file",
        len(PICTURE),
        "a.png",
        "vision",
    )
    assert toy.http.get(f"/v1/files/{stored['id']}").json() == stored
    assert stored in toy.http.get("/v1/files").json()["data"]
    content = toy.http.get(f"/v1/files/{stored['id']}/content")
    assert (content.content, content.headers["content-type"]) == (PICTURE, "application/octet-stream")
    assert toy.http.delete(f"/v1/files/{stored['id']}").json() == {
        "id": stored["id"],
        "object": "file",
        "deleted": True,
    }
    assert toy.http.get(f"/v1/files/{stored['id']}").status_code == 404
    assert not (toy.storage / "files" / stored["id"]).exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs", "a\u00e9\u4e2d.png", "x" * 400, 'a";b.png'])
def test_a_name_is_only_told(toy, name):
    stored = uploaded(toy, name=name).json()
    assert (toy.storage / "files" / stored["id"]).is_file()
    assert "/" not in stored["id"]
    toy.http.delete(f"/v1/files/{stored['id']}")


@pytest.mark.parametrize("path", ["..%2Fjobs.db", "file_0", "%2e%2e", "a%00b"])
def test_other_files_of_the_server_cannot_be_named(toy, path):
    assert toy.http.get(f"/v1/files/{path}/content").status_code == 404
    assert toy.http.delete(f"/v1/files/{path}").status_code == 404


def test_what_is_no_upload_is_told(toy):
    assert toy.http.post("/v1/files", data={"file": "text"}).json()["error"]["param"] == "file"
    assert toy.http.post("/v1/files", json={}).json()["error"]["param"] == "file"
    assert uploaded(toy, porpoise="x").json()["error"]["param"] == "porpoise"


def test_a_file_is_named_in_a_request_and_an_unknown_one_is_404(toy):
    stored = uploaded(toy).json()
    answer = toy.http.post("/v1/videos", json={"prompt": "x", "image_reference": {"file_id": stored["id"]}})
    # The toy takes no media; that it says so means that the file was found and read.
    assert "takes no media" in answer.json()["error"]["message"]
    answer = toy.http.post("/v1/videos", json={"prompt": "x", "image_reference": {"file_id": "file_0"}})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "item",
    [
        "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 50).decode(),
        "data:video/mp4;base64," + base64.b64encode(b"\x00\x00\x00\x18ftypmp42" + b"\x00" * 500).decode(),
        "data:,%00%01%02",
    ],
)
def test_a_broken_medium_is_the_callers_mistake(toy, item):
    answer = toy.http.post("/v1/videos", json={"prompt": "x", "input_reference": item})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "media_unreadable")
    assert answer.json()["error"]["param"] == "input_reference"
