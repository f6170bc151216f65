"""Bodies as fields: JSON, multipart and plain forms say the same."""

import asyncio
import json
import tracemalloc

import pytest
from starlette.datastructures import UploadFile
from starlette.requests import Request

from omnireel.errors import InvalidRequest, UnsupportedBody
from omnireel.server.form import MAX_DEPTH, parsed, reading

BOUNDARY = "x-frontier"


def fields_of(body: bytes, kind: str):
    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode("latin-1"))]}
    pieces = [body[k : k + 100] for k in range(0, len(body), 100)] or [b""]

    async def receive():
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def read():
        async with reading(Request(scope, receive), max_part_bytes=10_000) as fields:
            return {name: contents(value) for name, value in fields.values.items()}

    return asyncio.run(read())


def contents(value):
    if isinstance(value, list):
        return [contents(item) for item in value]
    return value.file.read() if isinstance(value, UploadFile) else value


def json_of(value):
    return fields_of(json.dumps(value).encode(), "application/json; charset=utf-8")


def part(name, content, filename=None):
    extra = f'; filename="{filename}"\r\nContent-Type: image/png' if filename else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def form_of(*parts):
    return fields_of(b"".join(parts) + f"--{BOUNDARY}--\r\n".encode(), f"multipart/form-data; boundary={BOUNDARY}")


def test_brackets_make_objects_and_lists():
    found = form_of(
        part("prompt", "ein D\u00e4mon".encode()), part("extra_params[task]", b"t2va"), part("extra_params[duration]", b"5.2"),
        part("extra_params[deep][is]", b"true"), part("names[]", b"a"), part("names[]", b"b"), part("names[]", b"null"),
    )  # fmt: skip
    assert found == {
        "prompt": "ein D\u00e4mon",
        "extra_params": {"task": "t2va", "duration": 5.2, "deep": {"is": True}},
        "names": ["a", "b", None],
    }


def test_repeated_fields_are_a_list_in_order():
    assert form_of(part("a", b"1"), part("b", b"x"), part("a", b"2"), part("a", b"3")) == {
        "a": ["1", "2", "3"],
        "b": "x",
    }


def test_files_come_as_files_in_order():
    assert form_of(part("f", b"first", "a.png"), part("f", b"second", "b.png")) == {"f": [b"first", b"second"]}


def test_a_plain_form_is_read_too():
    assert fields_of(b"prompt=a+kite&extra_params%5Btask%5D=t2va", "application/x-www-form-urlencoded") == {
        "prompt": "a kite", "extra_params": {"task": "t2va"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "[-Infinity]", '{"a": NaN}', "[" * 100_000, "", "1e", "9" * 5000, '{"a": 1, "a": 2}']
)
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011  any will do, its words are never shown
        parsed(text)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b'{"a": NaN}', b'\xff{"a": 1}', b'{"a": "\\ud800"}', b'{"\\udfff": 1}', b"[" * 9999],
)
def test_a_broken_json_body_is_told(body):
    with pytest.raises(InvalidRequest):
        fields_of(body, "application/json")


def test_json_tells_where_it_is_broken():
    with pytest.raises(InvalidRequest, match="Expecting value, letter 5"):
        fields_of(b'{"a":', "application/json")
    with pytest.raises(InvalidRequest, match="NaN is not JSON"):
        fields_of(b'{"a": NaN}', "application/json")
    with pytest.raises(InvalidRequest, match="given twice"):
        fields_of(b'{"prompt": "harmless", "prompt": "other"}', "application/json")


def test_a_file_within_json_is_in_memory_twice_at_most():
    letters = 8 * 2**20
    body = json.dumps({"prompt": "x", "video_reference": "A" * letters}).encode()

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def read():
        async with reading(
            Request({"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}, receive),
            max_part_bytes=1000,
        ):
            return tracemalloc.get_traced_memory()

    tracemalloc.start()
    try:
        now, peak = asyncio.run(read())
    finally:
        tracemalloc.stop()
    assert now < 1.5 * letters
    assert peak < 2.5 * letters


@pytest.mark.parametrize("brackets", ["[a]" * MAX_DEPTH, "[]" * 400])
def test_deep_brackets_are_refused(brackets):
    with pytest.raises(InvalidRequest, match="nested deeper"):
        form_of(part("extra_params" + brackets, b"1"))


def test_deep_json_is_refused():
    value: object = 1
    for _ in range(MAX_DEPTH + 2):
        value = {"a": value}
    with pytest.raises(InvalidRequest, match="nested deeper"):
        json_of(value)


@pytest.mark.parametrize("names", [("a", "a[b]"), ("a[b]", "a"), ("a[b]", "a[b][c]"), ("a[b][c]", "a[b]")])
def test_a_field_is_a_value_or_has_parts(names):
    with pytest.raises(InvalidRequest, match="both as a value and in parts"):
        form_of(*(part(name, b"x") for name in names))


@pytest.mark.parametrize("name", ["[a]", "a[", "a]b", "a[b", "a[b]c"])
def test_a_name_that_is_none_is_told(name):
    with pytest.raises(InvalidRequest):
        form_of(part(name, b"x"))


@pytest.mark.parametrize("kind", ["", "text/plain", "application/xml", "image/png"])
def test_other_bodies_are_refused(kind):
    with pytest.raises(UnsupportedBody):
        fields_of(b"x", kind)


@pytest.mark.parametrize(
    "body", [b"nonsense", b"--x-frontier\r\nno head", part("a", b"x" * 20_000), part("a", b"x") * 300]
)
def test_a_broken_or_swollen_form_is_told(body):
    with pytest.raises(InvalidRequest):
        fields_of(body + b"\r\n--x-frontier--\r\n", "multipart/form-data; boundary=x-frontier")


def test_a_plain_form_of_many_fields_and_heads_of_parts_without_end_are_told():
    with pytest.raises(InvalidRequest, match="Too many fields"):
        fields_of(b"a&" * 1000, "application/x-www-form-urlencoded")
    for head in (b"X: " + b"y" * 100_000, b"X: y\r\n" * 1000):
        with pytest.raises(InvalidRequest):
            form_of(b"--x-frontier\r\nContent-Disposition: form-data; name=a\r\n" + head + b"\r\n\r\nx\r\n")


def test_a_form_without_its_boundary_is_told():
    with pytest.raises(InvalidRequest):
        fields_of(part("a", b"x"), "multipart/form-data")
