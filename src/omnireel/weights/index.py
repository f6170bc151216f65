"""What weight files hold, told from their headers alone: names, types, shapes and places, checked before data is read.

A safetensors file is eight bytes of header length, a JSON header and the data. Paths in errors are relative to the
checkpoint, so that they read the same on every machine.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from omnireel.errors import BadCheckpoint

MAX_HEADER_BYTES = 100_000_000
"""The format's own bound; a larger length means that the file is something else."""

DTYPE_BYTES: Mapping[str, int] = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One stored tensor. `offset` counts from the start of the file; `dtype` is the format's own name for the type."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFiles:
    """A component's folder: its config and every tensor in its shards, by key. `shards` is sorted by name."""

    folder: Path
    config: Mapping[str, Any]
    shards: tuple[Path, ...]
    tensors: Mapping[str, TensorEntry]

    def shown(self, file: Path) -> str:
        """A file's name as errors write it: component folder and file name."""
        return f"{self.folder.name}/{file.name}"

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.size_bytes for entry in self.tensors.values())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint.

    Raises:
        BadCheckpoint: the file is missing, no JSON, no object, or gives a name twice.
    """
    shown = f"{path.parent.name}/{path.name}"
    try:
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=partial(_unique, shown))
    except FileNotFoundError:
        raise BadCheckpoint(shown, "the file is missing") from None
    except OSError as error:
        raise BadCheckpoint(shown, f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(shown, f"is not valid JSON ({error})") from None
    if not isinstance(data, dict):
        raise BadCheckpoint(shown, "must hold a JSON object", found=type(data).__name__)
    return data


def read_index(folder: Path, *, config_name: str = "config.json") -> ComponentFiles:
    """Everything that a component's folder says of its weights.

    Raises:
        BadCheckpoint: a file is missing, cut short, inconsistent or no safetensors file.
    """
    if not folder.is_dir():
        raise BadCheckpoint(folder.name, "the component's folder is missing")
    config = read_json(folder / config_name)
    shards, listed = _shards(folder)
    tensors: dict[str, TensorEntry] = {}
    for shard in shards:
        for entry in read_header(shard):
            if entry.key in tensors:
                raise BadCheckpoint(
                    f"{folder.name}/{shard.name}", "holds a tensor that another file holds too", key=entry.key,
                    found=f"also in {tensors[entry.key].file.name}",
                )  # fmt: skip
            tensors[entry.key] = entry
    _check_listed(folder, tensors, listed)
    return ComponentFiles(folder=folder, config=config, shards=shards, tensors=tensors)


def read_header(file: Path) -> tuple[TensorEntry, ...]:
    """The tensors of one safetensors file, in order of their place in it."""
    shown = f"{file.parent.name}/{file.name}"
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            header, start = _header(shown, stream, size)
    except FileNotFoundError:
        raise BadCheckpoint(shown, "the file is missing") from None
    except OSError as error:
        raise BadCheckpoint(shown, f"cannot be read ({error.strerror})") from None
    header.pop("__metadata__", None)
    # Tensors without a byte share their place with the next one and come before it.
    entries = sorted(
        (_entry(file, key, value, start) for key, value in header.items()), key=lambda e: (e.offset, e.size_bytes)
    )
    _check_places(shown, entries, start=start, end=size)
    return tuple(entries)


def _header(shown: str, stream: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The header and the place where the data starts."""
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
        raise BadCheckpoint(
            shown, "is no safetensors file or is cut short",
            expected=f"a header of {length} bytes", found=f"a file of {size} bytes",
        )  # fmt: skip
    try:
        header = json.loads(stream.read(length), object_pairs_hook=partial(_unique, shown))
    except (ValueError, RecursionError):
        raise BadCheckpoint(shown, "has a broken header") from None
    if not isinstance(header, dict):
        raise BadCheckpoint(shown, "has a broken header", expected="a JSON object", found=type(header).__name__)
    return header, 8 + length


def _unique(shown: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict; where a name comes twice, Python itself would quietly keep the last."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise BadCheckpoint(shown, "gives a name twice", key=key)
        found[key] = value
    return found


def _entry(file: Path, key: str, value: Any, base: int) -> TensorEntry:
    shown = f"{file.parent.name}/{file.name}"
    try:
        dtype, shape = value["dtype"], tuple(value["shape"])
        first, last = value["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise BadCheckpoint(shown, "has a broken header", key=key) from None
    if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in (*shape, first, last)):
        raise BadCheckpoint(shown, "has a broken header", key=key, found=json.dumps(value)[:80])
    if dtype not in DTYPE_BYTES:
        raise BadCheckpoint(
            shown, "has a tensor of an unknown type", key=key,
            expected=f"one of {', '.join(DTYPE_BYTES)}", found=dtype,
        )  # fmt: skip
    needed = math.prod(shape) * DTYPE_BYTES[dtype]
    if last - first != needed:
        raise BadCheckpoint(
            shown, "has a tensor whose place does not fit its shape", key=key,
            expected=f"{needed} bytes", found=f"{last - first} bytes",
        )  # fmt: skip
    return TensorEntry(key=key, dtype=dtype, shape=shape, file=file, offset=base + first, size_bytes=needed)


def _check_places(shown: str, entries: list[TensorEntry], *, start: int, end: int) -> None:
    """Tensors lie one behind the other, without holes, up to the end of the file: the format allows nothing else."""
    place = start
    for entry in entries:
        if entry.offset != place:
            problem = "has tensors that overlap" if entry.offset < place else "has bytes that belong to no tensor"
            raise BadCheckpoint(
                shown, problem, key=entry.key, expected=f"at byte {place}", found=f"at byte {entry.offset}"
            )
        place = entry.offset + entry.size_bytes
        if place > end:
            raise BadCheckpoint(
                shown, "is cut short", key=entry.key, expected=f"at least {place} bytes", found=f"{end} bytes"
            )
    if place != end:
        raise BadCheckpoint(shown, "goes on behind its last tensor", expected=f"{place} bytes", found=f"{end} bytes")


def _shards(folder: Path) -> tuple[tuple[Path, ...], Mapping[str, str] | None]:
    """The weight files of a folder, and the index's map of key to file where there is an index."""
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if len(indexes) > 1:
        raise BadCheckpoint(folder.name, "has more than one index", found=", ".join(path.name for path in indexes))
    if indexes:
        listed = read_json(indexes[0]).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
            raise BadCheckpoint(f"{folder.name}/{indexes[0].name}", "has no weight_map of key to file")
        names = sorted(set(listed.values()))
        for name in names:
            # A name with a folder in it could point anywhere on the disk.
            if Path(name).name != name:
                raise BadCheckpoint(f"{folder.name}/{indexes[0].name}", "names a file outside its folder", found=name)
        _check_there(folder, names)
        return tuple(folder / name for name in names), listed
    files = tuple(sorted(folder.glob("*.safetensors")))
    if not files:
        _explain_no_weights(folder)
    if len(files) > 1:
        raise BadCheckpoint(
            folder.name, "has several weight files and no index", found=", ".join(path.name for path in files)
        )
    return files, None


def _check_there(folder: Path, names: list[str]) -> None:
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise BadCheckpoint(
            f"{folder.name}/{absent[0]}", "the file is missing, though the index lists it",
            expected=f"{len(names)} weight files", found=f"{len(names) - len(absent)} of them",
            hint="the folder was not downloaded or copied to the end",
        )  # fmt: skip


def _explain_no_weights(folder: Path) -> None:
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLE_SUFFIXES)
    if pickles:
        raise BadCheckpoint(
            f"{folder.name}/{pickles[0]}",
            "is a pickle, which can run code when it is opened, and is not read",
            hint="convert the weights to safetensors",
        )
    raise BadCheckpoint(folder.name, "has no weight files", expected="*.safetensors")


def _check_listed(folder: Path, tensors: Mapping[str, TensorEntry], listed: Mapping[str, str] | None) -> None:
    for key, name in (listed or {}).items():
        if key not in tensors or tensors[key].file.name != name:
            raise BadCheckpoint(f"{folder.name}/{name}", "lacks a tensor that the index places in it", key=key)
    for key in tensors.keys() - (listed or tensors).keys():
        raise BadCheckpoint(
            f"{folder.name}/{tensors[key].file.name}", "holds a tensor that the index does not name", key=key
        )
