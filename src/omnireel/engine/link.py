"""Messages between two processes of one machine: a Unix socket for what is small, blocks of shared memory for what is not.

Also what the engine needs of any way to a worker, `Link`, whichever machine it is on.
"""

from __future__ import annotations

import array
import json
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from omnireel.engine.blocks import MIN_SHARED_BYTES, Block, block_of, new_array, received
from omnireel.engine.message import Array, StageMessage, from_parts, to_parts

_PREFIX = struct.Struct("!IIQ")
"""Bytes of the head, of the list of arrays, and of the arrays that come with it."""

MAX_BLOCKS = 250
"""Linux passes 253 descriptors at once."""

_MAX_INLINE_BYTES = MAX_BLOCKS * MIN_SHARED_BYTES
_MAX_HEAD_BYTES = 2**28
_FD_BYTES = array.array("i").itemsize


class LinkClosed(ConnectionError):
    """The other end is gone, or takes nothing any more; its words are for a log."""


class Wire(Protocol):
    """One end of a way for messages. Any thread may send; one receives."""

    def send(self, message: StageMessage) -> None:
        """Hands a message over.

        Raises:
            LinkClosed: the other end is gone or does not read.
            TypeError: the message holds what may not travel.
        """
        ...

    def receive(self, timeout_seconds: float) -> StageMessage | None:
        """The next message; None when none came in that time.

        Raises:
            LinkClosed: the other end is gone.
        """
        ...


class Link(Wire, Protocol):
    """The engine's end of the way to one worker."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The worker's processes on this machine, that of the first rank first; none where it is on another."""
        ...

    def kill(self) -> None:
        """Ends the worker at once, whatever it does."""
        ...

    def close(self, timeout_seconds: float) -> bool:
        """Waits for the worker's own end, kills it after that time, and gives everything back; True if it ended itself."""
        ...

    def epitaph(self) -> tuple[str, tuple[str, ...]]:
        """How a dead worker ended, in words, and the last lines that it wrote."""
        ...


class SocketLink:
    """One end of a socket pair.

    Args:
        end: a connected Unix stream socket, which it owns from now on.
        send_seconds: how long the other end may leave a full socket unread; None for ever.
    """

    def __init__(self, end: socket.socket, *, send_seconds: float | None = None) -> None:
        self._socket = end
        self._socket.settimeout(send_seconds)
        self._lock = threading.Lock()
        # select() fails in a server that has a thousand files and sockets open.
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def fileno(self) -> int:
        """What becomes readable when a message is there."""
        return self._socket.fileno()

    def send(self, message: StageMessage) -> None:
        """See `Wire.send`."""
        head, arrays = to_parts(message)
        specs, blocks, inline = _packed(arrays)
        listed = json.dumps(specs).encode()
        size = sum(part.nbytes for part in inline)
        if len(head) + len(listed) > _MAX_HEAD_BYTES or size > _MAX_INLINE_BYTES:
            # Who receives it would take it for none of ours and hang up.
            raise TypeError(f"a message of {len(head) + len(listed) + size} bytes is too large")
        fds = array.array("i", [block.fd for block in blocks])
        prefix = _PREFIX.pack(len(head), len(listed), size)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if blocks else []
        try:
            with self._lock:
                sent = self._socket.sendmsg([prefix], ancillary)
                self._socket.sendall(b"".join([prefix[sent:], head, listed, *(part.data for part in inline)]))
        except OSError as error:
            raise LinkClosed(str(error) or type(error).__name__) from error

    def receive(self, timeout_seconds: float) -> StageMessage | None:
        """See `Wire.receive`.

        Raises:
            LinkClosed: also when what came is no message.
        """
        try:
            if not self._poll.poll(1000 * timeout_seconds):
                return None
            prefix, fds = self._prefix()
            try:
                return self._message(prefix, iter(fds))
            finally:
                for fd in fds:
                    socket.close(fd)
        except (OSError, ValueError, StopIteration) as error:
            raise LinkClosed(str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Lets the other end know; what it sends afterwards is lost."""
        self._socket.close()

    def _prefix(self) -> tuple[bytes, array.array[int]]:
        got, fds = b"", array.array("i")
        while len(got) < _PREFIX.size:
            room = socket.CMSG_SPACE(MAX_BLOCKS * _FD_BYTES)
            data, ancillary, _, _ = self._socket.recvmsg(
                _PREFIX.size - len(got), room, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            )
            if not data:
                raise LinkClosed("the other end closed the connection")
            got += data
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(content[: len(content) - len(content) % _FD_BYTES])
        return got, fds

    def _message(self, prefix: bytes, fds: Iterator[int]) -> StageMessage:
        head_size, list_size, size = _PREFIX.unpack(prefix)
        if head_size + list_size > _MAX_HEAD_BYTES or size > _MAX_INLINE_BYTES:
            raise ValueError("a message of that size is none of ours")
        head, listed = self._exactly(head_size), self._exactly(list_size)
        inline = self._exactly(size)
        return from_parts(memoryview(head), _unpacked(json.loads(listed), inline, fds))

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view.nbytes:
            count = self._socket.recv_into(view)
            if not count:
                raise LinkClosed("the other end closed the connection")
            view = view[count:]
        return data


def in_blocks(message: StageMessage) -> StageMessage:
    """The same message with its large arrays in blocks, so that they are copied once however often it is sent.

    Raises:
        TypeError: the message holds what may not travel.
    """
    head, arrays = to_parts(message)
    return from_parts(head, [item if item.nbytes < MIN_SHARED_BYTES else _in_block(item)[2] for item in arrays])


def _in_block(item: Array) -> tuple[Block, int, Array]:
    """The block that an array lies in, its offset there, and the array; a copy where it lies elsewhere."""
    found = block_of(item)
    if found is not None:
        return (*found, item)
    shared = new_array(item.shape, item.dtype)
    np.copyto(shared, item)
    found = block_of(shared)
    assert found is not None
    return (*found, shared)


def _packed(arrays: Sequence[Array]) -> tuple[list[list[object]], list[Block], list[Array]]:
    """What the list of arrays says, the blocks that go with it, and the small arrays in order."""
    specs: list[list[object]] = []
    blocks: list[Block] = []
    inline: list[Array] = []
    for item in arrays:
        kind = [item.dtype.str, list(item.shape)]
        if item.nbytes < MIN_SHARED_BYTES:
            specs.append([*kind, -1, 0])
            inline.append(np.ascontiguousarray(item).reshape(-1).view(np.uint8))
            continue
        if len(blocks) == MAX_BLOCKS:
            raise TypeError(f"more than {MAX_BLOCKS} large arrays in one message")
        block, offset, _ = _in_block(item)
        specs.append([*kind, len(block), offset])
        blocks.append(block)
    return specs, blocks, inline


def _unpacked(specs: list[list[object]], inline: bytearray, fds: Iterator[int]) -> list[Array]:
    """Arrays over the bytes that came; each large one has the next descriptor."""
    found: list[Array] = []
    at = 0
    for name, shape, size, offset in specs:
        kind = np.dtype(str(name))
        if kind.hasobject or not isinstance(shape, list) or not isinstance(size, int) or not isinstance(offset, int):
            raise ValueError("not a list of arrays")
        count = int(np.prod(shape, dtype=np.int64))
        if not count:
            found.append(np.empty(shape, kind))
        elif size < 0:
            found.append(np.frombuffer(inline, kind, count, at).reshape(shape))
            at += count * kind.itemsize
        else:
            found.append(np.frombuffer(received(next(fds), size), kind, count, offset).reshape(shape))
    return found


Launch = Callable[[], Link]
"""Starts one worker and gives the way to it."""
