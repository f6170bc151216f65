"""Finished frames from a device to the host, in order, either at once or while the next ones are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from omnireel.request import FramesU8


class FrameMover(Protocol):
    """Fills uint8 frames [T,H,W,3] from the first to the last; `finish` before they are read."""

    def put(self, piece_THWC: Tensor) -> None:
        """The next frames, on the device."""
        ...

    def finish(self) -> None:
        """Waits for what is still under way."""
        ...


class Direct:
    """Waits for each piece."""

    def __init__(self, frames: FramesU8) -> None:
        self._frames, self._done = frames, 0

    def put(self, piece_THWC: Tensor) -> None:
        """See `FrameMover`."""
        count = len(piece_THWC)
        self._frames[self._done : self._done + count] = piece_THWC.cpu().numpy()
        self._done += count

    def finish(self) -> None:
        """Nothing is under way."""


class Overlapped:
    """Two pinned buffers take turns: a piece is copied out of its buffer when the piece after it has been queued, so that the
    device has work while the host copies.
    """

    def __init__(self, frames: FramesU8) -> None:
        self._frames, self._done = frames, 0
        self._buffers: list[Tensor | None] = [None, None]
        self._turn = 0
        self._waiting: tuple[Any, Tensor] | None = None

    def put(self, piece_THWC: Tensor) -> None:
        """See `FrameMover`."""
        buffer = self._buffers[self._turn]
        if buffer is None or buffer.numel() < piece_THWC.numel():
            buffer = self._buffers[self._turn] = self._pinned(piece_THWC.numel())
        staged = buffer[: piece_THWC.numel()].view(piece_THWC.shape)
        staged.copy_(piece_THWC.contiguous(), non_blocking=True)
        event = self._mark(piece_THWC.device)
        self.finish()
        self._waiting, self._turn = (event, staged), 1 - self._turn

    def finish(self) -> None:
        """See `FrameMover`."""
        if self._waiting is None:
            return
        event, staged = self._waiting
        self._waiting = None
        event.synchronize()
        self._frames[self._done : self._done + len(staged)] = staged.numpy()
        self._done += len(staged)

    def _pinned(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def _mark(self, device: torch.device) -> Any:
        """An event of the device that has happened when everything queued so far has."""
        event = torch.Event(device=device)
        event.record()
        return event
