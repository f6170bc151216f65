"""The one message that crosses a process, and how it becomes bytes: a JSON head and arrays beside it, never pickle.

What may travel: plain data, bytes, paths, numpy arrays, the package's own frozen dataclasses and enumerations, and platforms
by name. Decoding builds only types of this package, so a message cannot run code.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omnireel.errors import OmniReelError
from omnireel.platforms import all_platforms, find_platform

_TAG = "!"
_PACKAGE = "omnireel."
Array = npt.NDArray[Any]


class Kind(StrEnum):
    """What a message is about."""

    LOAD = "load"
    """To a worker: what to build, a `BuildContext` and more."""
    READY = "ready"
    """The model is loaded; the body says its digest and what recipes remember."""
    RUN = "run"
    """To a worker: a `Workload` and what is left of its time."""
    STAGE = "stage"
    """A request has come to this stage; a sign of life where there are no steps."""
    STEP = "step"
    """A `StepEvent`."""
    DONE = "done"
    """A `RunReport`: the request's last message."""
    FAILED = "failed"
    """An error as data: of a request, whose last message it is, or of loading where there is no request."""
    LEFT = "left"
    """A rank left its group, for it failed; what the request came to follows."""
    JOIN = "join"
    """To a rank: the generation of its group that it is to join before the next request."""
    ABORT = "abort"
    """To a rank: another one failed, so what it waits for on its device will not come."""
    CANCEL = "cancel"
    """To a worker: the request is not wanted any more."""
    PROFILE = "profile"
    """To a worker: a `TraceOrder`, or nothing to end the trace."""
    PROFILED = "profiled"
    """That was done: the files that were written, or an error."""
    HANDOVER = "handover"
    """A part of what one stage hands to the next."""
    PING = "ping"
    PONG = "pong"
    CLOSE = "close"
    """To a worker: end when nothing is under way."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageMessage:
    """One message between the engine and a worker, or between stages. `body` is whatever the kind says."""

    kind: Kind
    request_id: str = ""
    body: Any = None


def to_parts(message: StageMessage) -> tuple[bytes, list[Array]]:
    """The head and the arrays that it refers to by number, as they are, without a copy.

    Raises:
        TypeError: something in it may not travel.
    """
    arrays: list[Array] = []
    head = {"kind": message.kind.value, "request_id": message.request_id, "body": _plain(message.body, arrays)}
    return json.dumps(head, separators=(",", ":")).encode(), arrays


def from_parts(head: bytes | memoryview, arrays: Sequence[Array]) -> StageMessage:
    """The inverse of `to_parts`; arrays are taken as they are.

    Raises:
        ValueError: these bytes are no message.
    """
    try:
        data = json.loads(bytes(head))
        body = _built(data["body"], arrays)
        return StageMessage(kind=Kind(data["kind"]), request_id=data["request_id"], body=body)
    except (KeyError, TypeError, AttributeError, ImportError, IndexError) as error:
        raise ValueError(f"not a message: {error}") from error


def _plain(value: Any, arrays: list[Array]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_plain(item, arrays) for item in value]
    for kind, tag, data in _TAGGED:
        if isinstance(value, kind):
            return {_TAG: tag, "v": data(value, arrays)}
    if is_dataclass(value) and type(value).__module__.startswith(_PACKAGE):
        content = {item.name: _plain(getattr(value, item.name), arrays) for item in fields(value)}
        return {_TAG: "type", "name": _name_of(type(value)), "v": content}
    for platform in all_platforms():
        if platform is value:
            return {_TAG: "platform", "v": platform.name}
    raise TypeError(f"a {type(value).__name__} may not travel between processes")


def _index_of(value: Array, arrays: list[Array]) -> int:
    if value.dtype.hasobject:
        raise TypeError("an array of objects may not travel between processes")
    arrays.append(value)
    return len(arrays) - 1


def _enum(value: Enum, arrays: list[Array]) -> list[Any]:
    if not type(value).__module__.startswith(_PACKAGE):
        raise TypeError(f"a {type(value).__name__} may not travel between processes")
    return [_name_of(type(value)), value.value]


_TAGGED: tuple[tuple[type, str, Callable[[Any, list[Array]], Any]], ...] = (
    (np.ndarray, "array", _index_of),
    (Enum, "enum", _enum),
    (bool, "plain", lambda value, _: bool(value)),
    (str, "plain", lambda value, _: str(value)),
    (int, "plain", lambda value, _: int(value)),
    (float, "plain", lambda value, _: float(value)),
    (np.generic, "plain", lambda value, _: value.item()),
    (tuple, "tuple", lambda value, arrays: [_plain(item, arrays) for item in value]),
    (frozenset, "set", lambda value, arrays: [_plain(item, arrays) for item in sorted(value)]),
    (Mapping, "map", lambda value, arrays: [[_plain(k, arrays), _plain(v, arrays)] for k, v in value.items()]),
    (bytes, "bytes", lambda value, arrays: _index_of(np.frombuffer(value, np.uint8), arrays)),
    (Path, "path", lambda value, _: str(value)),
    (OmniReelError, "error", lambda value, arrays: _plain(value.to_dict(), arrays)),
)


def _built(data: Any, arrays: Sequence[Array]) -> Any:
    if isinstance(data, list):
        return [_built(item, arrays) for item in data]
    if not isinstance(data, dict):
        return data
    if data[_TAG] == "type":
        return _instance(data["name"], data["v"], arrays)
    return _BUILDERS[data[_TAG]](data["v"], arrays)


def _items(data: list[Any], arrays: Sequence[Array]) -> list[Any]:
    return [_built(item, arrays) for item in data]


_BUILDERS: Mapping[str, Callable[[Any, Sequence[Array]], Any]] = {
    "array": lambda data, arrays: arrays[data],
    "enum": lambda data, _: _type_of(data[0], Enum)(data[1]),
    "plain": lambda data, _: data,
    "tuple": lambda data, arrays: tuple(_items(data, arrays)),
    "set": lambda data, arrays: frozenset(_items(data, arrays)),
    "map": lambda data, arrays: {_built(key, arrays): _built(value, arrays) for key, value in data},
    "bytes": lambda data, arrays: arrays[data].tobytes(),
    "path": lambda data, _: Path(data),
    "error": lambda data, arrays: OmniReelError.from_dict(_built(data, arrays)),
    "platform": lambda data, _: find_platform(data),
}


def _instance(name: str, data: Mapping[str, Any], arrays: Sequence[Array]) -> Any:
    kind: Callable[..., Any] = _type_of(name, object)
    if not is_dataclass(kind):
        raise ValueError(f"{name} is no message's type")
    return kind(**{key: _built(value, arrays) for key, value in data.items()})


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _type_of(name: str, base: type) -> Any:
    module, _, attribute = name.partition(":")
    if not module.startswith(_PACKAGE):
        raise ValueError(f"{name} is no type of this package")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, type) or not issubclass(found, base):
        raise ValueError(f"{name} is no message's type")
    return found
