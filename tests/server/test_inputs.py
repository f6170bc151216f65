"""The one door for media."""

import asyncio
import base64
import io
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from omnireel.config import ServerSpec
from omnireel.errors import Conflict, InvalidRequest, MediaUnreadable
from omnireel.request import MediaKind
from omnireel.server.asked import Source
from omnireel.server.inputs import Inputs, Medium, roles_of

pytestmark = pytest.mark.slow

STREAM = io.BytesIO()
Image.new("RGB", (20, 10), "red").save(STREAM, "png")
PICTURE = STREAM.getvalue()
DATA_URL = "data:image/png;base64," + base64.b64encode(PICTURE).decode()


def taken(folder, *sources, starts=(), **spec):
    folder = folder / "arrived"
    folder.mkdir()
    inputs = Inputs(ServerSpec(**spec), stored=lambda _: folder.parent / "stored.png", clip=lambda _: Path("/gone"))
    return asyncio.run(inputs.taken(sources, starts, folder))


def test_urls_and_stored_files_arrive_in_order(tmp_path):
    (tmp_path / "stored.png").write_bytes(PICTURE)
    media = taken(tmp_path, Source("a", "", url=DATA_URL), Source("b", "image", file_id="file_1"))
    assert [(medium.field, medium.kind, medium.path) for medium in media] == [
        ("a", MediaKind.IMAGE, "input-0"), ("b", MediaKind.IMAGE, "input-1"),
    ]  # fmt: skip
    assert (tmp_path / "arrived" / "input-1").read_bytes() == PICTURE


def test_a_stored_file_that_is_gone_is_told(tmp_path):
    with pytest.raises(Conflict, match="a: the file is gone"):
        taken(tmp_path, Source("a", "", file_id="file_1"))


@pytest.mark.parametrize("url", ["/etc/passwd", "ftp://a/b", "plain", "javascript:1", ""])
def test_what_is_no_url_is_told(tmp_path, url):
    with pytest.raises(InvalidRequest, match="a: "):
        taken(tmp_path, Source("a", "", url=url))


def test_too_many_media_are_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="at most 16"):
        taken(tmp_path, *(Source(f"a[{k}]", "", url=DATA_URL) for k in range(17)))


def test_starts_belong_to_clips(tmp_path):
    with pytest.raises(InvalidRequest, match="start_time_seconds"):
        taken(tmp_path, Source("a", "", url=DATA_URL), starts=[1.0])


@pytest.fixture
def allowed(tmp_path):
    root = tmp_path / "media"
    root.mkdir()
    (root / "a b.png").write_bytes(PICTURE)
    (tmp_path / "outside.png").write_bytes(PICTURE)
    (root / "link.png").symlink_to(tmp_path / "outside.png")
    return root


def test_a_file_below_the_allowed_folder_may_be_named(tmp_path, allowed):
    url = f"file://{allowed}/a%20b.png"
    assert taken(tmp_path, Source("a", "", url=url), allowed_local_media_path=allowed)[0].kind is MediaKind.IMAGE


@pytest.mark.parametrize(
    "name",
    ["../outside.png", "%2e%2e/outside.png", "link.png", "nowhere.png", "", ".", "a%20b.png%00.png", "a%20b.png/x"],
)
def test_no_other_file_may_be_named(tmp_path, allowed, name):
    with pytest.raises(MediaUnreadable, match="no file that may be named"):
        taken(tmp_path, Source("a", "", url=f"file://{allowed}/{name}"), allowed_local_media_path=allowed)


@pytest.mark.parametrize("host", ["other.example", "127.0.0.1"])
def test_files_of_other_hosts_are_none(tmp_path, allowed, host):
    with pytest.raises(MediaUnreadable):
        taken(tmp_path, Source("a", "", url=f"file://{host}{allowed}/a%20b.png"), allowed_local_media_path=allowed)


def test_no_file_may_be_named_unless_a_folder_is_allowed(tmp_path, allowed):
    with pytest.raises(MediaUnreadable, match="none may be named"):
        taken(tmp_path, Source("a", "", url=f"file://{allowed}/a%20b.png"))


def media(*kinds, field="input_reference"):
    return [Medium(field=field, kind=MediaKind(kind), path=f"{k}") for k, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("given", "indices", "roles"),
    [
        (media(), None, [[]]),
        (media("image"), None, [["first_frame"], ["reference"]]),
        (media("image", "image"), None, [["first_frame", "last_frame"], ["reference", "reference"]]),
        (media("image", "image"), (0, -1), [["first_frame", "last_frame"]]),
        (media("image"), (-1,), [["last_frame"]]),
        (media("image", "video"), None, [["reference", "reference"]]),
        (media("image", "image", "image"), None, [["reference"] * 3]),
        (media("image", field="image_reference"), None, [["reference"], ["first_frame"]]),
    ],
)
def test_roles_the_likeliest_first(given, indices, roles):
    assert roles_of(given, indices) == roles


def test_frame_indices_are_one_a_picture():
    with pytest.raises(InvalidRequest, match="frame_indices"):
        roles_of(media("image"), (0, -1))


LOCAL = [
    "http://127.0.0.1/x", "http://localhost/x", "http://LOCALHOST.:80/x", "http://127.1/x", "http://2130706433/x",
    "http://0x7f000001/x", "http://0177.0.0.1/x", "http://0x7f.1/x", "http://0/x", "http://0.0.0.0/x", "http://[::1]/x", "http://[::]/x",
    "http://[0:0:0:0:0:0:0:1]:8000/x", "http://[::ffff:127.0.0.1]/x", "http://[::ffff:7f00:1]/x", "http://[::127.0.0.1]/x",
    "http://[::ffff:0:127.0.0.1]/x", "http://[64:ff9b::127.0.0.1]/x", "http://[64:ff9b:1::127.0.0.1]/x", "http://[2002:7f00:1::]/x",
    "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/x", "http://10.0.0.1/x", "http://172.16.0.1/x", "http://192.168.1.1/x",
    "http://100.64.0.1/x", "http://169.254.169.254/latest/meta-data", "http://[fe80::1]/x", "http://[fe80::1%25lo]/x",
    "http://[fc00::1]/x", "http://[fec0::1]/x", "http://224.0.0.1/x", "http://[ff02::1]/x", "http://255.255.255.255/x",
    "http://198.18.0.1/x", "http://192.0.0.1/x", "http://240.0.0.1/x", "http://public@127.0.0.1/x", "http://8.8.8.8@127.0.0.1/x",
    "http://127.0.0.1#@8.8.8.8/", "http://127.0.0.1?@8.8.8.8/", "http://127.0.0.1:80\\@8.8.8.8/", "http://\u2460\u2461\u2466.0.0.1/x",
    "http://127\u30020\u30020\u30021/x", "https://127.0.0.1:443/x", "HTTP://127.0.0.1/x", "http://127.0.0.1:99999/x", "http:127.0.0.1/x",
    "http:///127.0.0.1/x", "http://127.0.0.1\t/x", "http://127.0.0.1%2f@8.8.8.8/", "file:///etc/passwd", "file://localhost/etc/passwd",
    "FILE:/etc/passwd", "gopher://127.0.0.1/x", "ftp://127.0.0.1/x", "dict://127.0.0.1:11211/stat", "ldap://127.0.0.1/", "//127.0.0.1/x",
    "unix:/var/run/docker.sock", "jar:http://127.0.0.1!/x", "concat:/etc/passwd|/etc/hosts", "subfile,,start,0,end,9,,:/etc/passwd",
]  # fmt: skip


@pytest.mark.parametrize("url", LOCAL)
def test_no_spelling_leads_into_the_local_network(tmp_path, monkeypatch, url):
    reached = []

    def connect(address, *_):
        reached.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises((MediaUnreadable, InvalidRequest)) as caught:
        taken(tmp_path, Source("a", "", url=url))
    # What is left of some spellings is a public address, to which nothing is said of ours.
    assert {place[0] for place in reached} <= {"8.8.8.8"}
    assert "127.0.0.1" not in caught.value.message


def test_a_name_is_resolved_once_so_that_it_cannot_turn_private(tmp_path, monkeypatch):
    answers = iter(["93.184.216.34", "127.0.0.1"])

    def resolved(*_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), 80))]

    reached = []

    def connect(address, *_):
        reached.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(MediaUnreadable):
        taken(tmp_path, Source("a", "", url="http://rebinding.example/x"))
    assert reached == [("93.184.216.34", 80)]


def test_hosts_that_do_not_answer_hold_up_nobody_else(tmp_path):
    folders = [tmp_path / str(k) for k in range(12)]
    for folder in folders:
        folder.mkdir()

    async def first_done(url):
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
        inputs = Inputs(
            ServerSpec(allow_private_media=True, media_timeout=2.0),
            stored=lambda _: Path("/gone"),
            clip=lambda _: Path("/gone"),
        )
        fetches = [asyncio.create_task(inputs.taken([Source("a", "image", url=url)], (), folder)) for folder in folders]
        await asyncio.sleep(0.2)
        done, _ = await asyncio.wait(
            {asyncio.create_task(asyncio.to_thread(int), name="other"), *fetches}, return_when=asyncio.FIRST_COMPLETED
        )
        await asyncio.gather(*fetches, return_exceptions=True)
        return [task.get_name() for task in done], [task.exception() for task in fetches]

    with socket.create_server(("127.0.0.1", 0)) as silent:
        names, errors = asyncio.run(first_done(f"http://127.0.0.1:{silent.getsockname()[1]}/a.png"))
    assert names == ["other"]
    assert all(isinstance(error, MediaUnreadable) for error in errors)
