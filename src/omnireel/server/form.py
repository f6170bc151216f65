"""A request's body as fields and files, whichever way it was written: JSON, multipart or a plain form.

Form fields with brackets are put together (`extra_params[task]=t2va`, `names[]=a`), repeated ones become lists, in order.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException

from omnireel.errors import InvalidRequest, UnsupportedBody
from omnireel.server.storage import storage_errors

MAX_FILES = 32
MAX_FIELDS = 200
MAX_DEPTH = 8
LARGE_BYTES = 1 << 18
"""A body of this size is parsed by a thread, as other requests would have to wait for it."""
_KEY = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields by name in the order of the body; a value may be text, JSON, an UploadFile, or a list of them."""

    values: Mapping[str, Any]
    is_json: bool


@asynccontextmanager
async def reading(request: Request, *, max_part_bytes: int) -> AsyncIterator[Fields]:
    """The fields of a request. Files of a form are on disk beyond one MiB, and closed at the end of the block.

    Raises:
        InvalidRequest: the body is broken.
        UnsupportedBody: it is of another type.
        StorageFailed: the disk is full.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        body = await _whole(request)
        is_large = len(body) > LARGE_BYTES
        yield Fields(await asyncio.to_thread(_json, body) if is_large else _json(body), is_json=True)
        return
    if kind not in ("multipart/form-data", "application/x-www-form-urlencoded"):
        raise UnsupportedBody(f"a body of type {kind[:60]!r} is not read", hint="send JSON or multipart/form-data")
    try:
        with storage_errors():
            form = await request.form(max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=max_part_bytes)
    except MultiPartException as error:
        raise InvalidRequest("body", "...", error.message) from None
    try:
        yield Fields(_checked(_nested(form.multi_items())), is_json=False)
    finally:
        await form.close()


def parsed(text: str) -> Any:
    """JSON, without NaN, Infinity, and objects that have a name twice: of these a filter in front may have read the other.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_refused, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


async def _whole(request: Request) -> bytearray:
    """The body; unlike the request's own, it is not kept for as long as the request."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
    return body


def _json(body: bytearray) -> Mapping[str, Any]:
    """The fields of a JSON body, which is emptied: files in it are in memory once."""
    try:
        text = body.decode()
        body.clear()
        values = parsed(text)
    except UnicodeDecodeError:
        raise InvalidRequest("body", "...", "it must be UTF-8") from None
    except ValueError as error:
        is_told = isinstance(error, json.JSONDecodeError)
        why = f"{error.msg}, letter {error.pos}" if is_told else str(error).partition(":")[0]  # type: ignore[attr-defined]
        raise InvalidRequest("body", "...", f"it must be JSON ({why})") from None
    if not isinstance(values, dict):
        raise InvalidRequest("body", "...", "it must be a JSON object")
    return _checked(values)


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Values that can be stored and told again: of bounded depth and without halves of characters."""
    _walk("body", values, MAX_DEPTH)
    return values


def _walk(name: str, value: object, depth: int) -> None:
    if depth < 0:
        raise InvalidRequest("body", "...", f"it must not be nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        try:
            # Of a large file's letters no copy is made.
            value.isascii() or value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(name, "...", "it must be Unicode") from None
    elif isinstance(value, dict):
        for key, inner in value.items():
            _walk("body", key, depth)
            _walk(key, inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            _walk(name, inner, depth - 1)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _refused(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _nested(items: list[tuple[str, str | UploadFile]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in items:
        match = _KEY.fullmatch(key)
        if match is None:
            raise InvalidRequest(key[:60], "...", "a name is letters, with parts of it in [brackets]")
        name, parts = match[1], re.findall(r"\[([^\[\]]*)\]", match[2])
        if parts:
            _put(found, [name, *parts], _typed(value))
        else:
            _append(found, name, value)
    return {name: _listed(value) for name, value in found.items()}


def _put(found: dict[str, Any], path: list[str], value: Any) -> None:
    if len(path) > MAX_DEPTH:
        raise InvalidRequest(path[0], "...", f"it must not be nested deeper than {MAX_DEPTH}")
    *outer, last = path
    place = found
    for name in outer:
        inner = place.setdefault(name or str(len(place)), {})
        if not isinstance(inner, dict):
            raise InvalidRequest(path[0], "...", "it was given both as a value and in parts")
        place = inner
    _append(place, last or str(len(place)), value)


def _append(place: dict[str, Any], name: str, value: Any) -> None:
    if name not in place:
        place[name] = value
    elif isinstance(place[name], list):
        place[name].append(value)
    elif isinstance(place[name], dict):
        raise InvalidRequest(name, "...", "it was given both as a value and in parts")
    else:
        place[name] = [place[name], value]


def _typed(value: str | UploadFile) -> Any:
    """A part in brackets as JSON would have it: numbers and truth values as such, all else as text."""
    if isinstance(value, UploadFile) or not re.fullmatch(r"true|false|null|-?[0-9]{1,19}(\.[0-9]{1,40})?", value):
        return value
    return parsed(value)


def _listed(value: Any) -> Any:
    """Parts numbered from 0 are a list."""
    if not isinstance(value, dict):
        return value
    inner = {name: _listed(part) for name, part in value.items()}
    return list(inner.values()) if list(inner) == [str(k) for k in range(len(inner))] else inner
