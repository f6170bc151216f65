"""Memory that two processes can see, without a name: whoever holds it last frees it, however a process ends.

A block is a file without a name (memfd on Linux, an unlinked file elsewhere), handed over as a file descriptor, so nothing of
it can be left behind in /dev/shm and the small /dev/shm of a container is no limit. Who receives one keeps no descriptor:
programs hold results by the thousand, and descriptors are few.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

MIN_SHARED_BYTES = 2**18
"""Arrays from here on travel as blocks; a smaller one is copied in less time than a block takes to map."""


class Block(mmap.mmap):
    """A mapping that knows its descriptor. Arrays made of it keep it alive; the last one lets the memory go."""

    fd: int = -1

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def new_block(size_bytes: int) -> Block:
    """A block of zeros; pages cost memory when they are first written.

    Raises:
        MemoryError: the system has no more of it, or of descriptors.
    """
    try:
        fd = _nameless()
        try:
            os.ftruncate(fd, size_bytes)
            block = Block(fd, size_bytes)
            block.fd = fd
            return block
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise MemoryError(f"no shared memory of {size_bytes} bytes: {error.strerror}") from error


def received(fd: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    """The bytes of the block behind a descriptor, which may be closed then; mapped as long as an array of them is there.

    Raises:
        ValueError: the block is not that large.
    """
    if os.fstat(fd).st_size < size_bytes:
        raise ValueError("a block that is smaller than it is said to be")
    # Python's own mapping would keep a descriptor of it.
    mapped = torch.from_file(f"/dev/fd/{fd}", shared=True, size=size_bytes, dtype=torch.uint8)
    return mapped.numpy()


def new_array(shape: Sequence[int], dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
    """An array of zeros that `block_of` finds, so that it can be handed to another process without a copy."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    return np.frombuffer(new_block(max(size, 1)), dtype=kind, count=size // kind.itemsize).reshape(shape)


def block_of(array: npt.NDArray[Any]) -> tuple[Block, int] | None:
    """The block that an array lies in and its offset there in bytes; None when it lies elsewhere or in pieces."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, Block) or not array.flags.c_contiguous:
        return None
    start = np.frombuffer(owner, np.uint8).ctypes.data
    return owner, array.ctypes.data - start


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("omnireel", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
