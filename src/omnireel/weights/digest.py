"""A fingerprint of weights that is quick even for 66 GB: everything the headers say, and both ends of every tensor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import ExitStack
from typing import BinaryIO

from omnireel.weights.index import ComponentFiles, TensorEntry

SAMPLE_BYTES = 4096


def weights_digest(components: Iterable[ComponentFiles]) -> str:
    """The text "sampled-sha256:" and 64 hexadecimal digits, over each component's name, config and tensors.

    Of a tensor its key, type, shape and first and last 4 KiB count (all of it up to 8 KiB). Training, merging an adapter
    or quantising changes every tensor and so the digest; how tensors are split over files does not.
    """
    total = hashlib.sha256()
    for files in sorted(components, key=lambda files: files.folder.name):
        total.update(f"{files.folder.name}\n{json.dumps(files.config, sort_keys=True)}\n".encode())
        with ExitStack() as stack:
            streams = {shard: stack.enter_context(shard.open("rb")) for shard in files.shards}
            for key in sorted(files.tensors):
                entry = files.tensors[key]
                total.update(f"{key} {entry.dtype} {list(entry.shape)}\n".encode())
                total.update(_ends(streams[entry.file], entry))
    return f"sampled-sha256:{total.hexdigest()}"


def _ends(stream: BinaryIO, entry: TensorEntry) -> bytes:
    stream.seek(entry.offset)
    if entry.size_bytes <= 2 * SAMPLE_BYTES:
        return stream.read(entry.size_bytes)
    first = stream.read(SAMPLE_BYTES)
    stream.seek(entry.offset + entry.size_bytes - SAMPLE_BYTES)
    return first + stream.read(SAMPLE_BYTES)
