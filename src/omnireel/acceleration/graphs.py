"""Small steps as one recorded graph of a device: what takes longer to queue than to compute is queued once and replayed.

A graph reads and writes fixed memory, so inputs are copied to where it reads and outputs from where it writes. What a call does
beyond its tensors (shapes, slices, branches) is part of the graph and has to be part of its key.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Outputs: TypeAlias = tuple[Tensor, ...]
Call: TypeAlias = Callable[..., Outputs]
Capture: TypeAlias = Callable[[Callable[[], Outputs]], Callable[[], Outputs]]
"""Records what a call queues; what it gives queues it again and gives the same outputs, filled anew."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Graph:
    inputs: list[Tensor]
    replay: Callable[[], Outputs]


class Graphs:
    """The graphs of the calls that were made last. Of one thread.

    Args:
        capture: the platform's, see `Platform.capture`.
        size: how many are kept; each holds the memory of its call.
        after: calls of a kind that are run as they are before the next one is recorded.
    """

    def __init__(self, capture: Capture, *, size: int = 4, after: int = 2) -> None:
        self._capture: Capture | None = capture
        self._size, self._after = size, after
        self._kept: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._seen: OrderedDict[Hashable, int] = OrderedDict()

    def run(self, key: Hashable, call: Call, inputs: Sequence[Tensor]) -> Outputs:
        """`call(*inputs)`. Calls of the same key do the same work on tensors of the same shapes and types.

        A call that cannot be recorded is told once, and from then on everything is run as it is.
        """
        key = key, tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        graph = self._kept.get(key)
        if graph is None:
            if self._capture is None or not self._is_due(key):
                return call(*inputs)
            graph = self._recorded(self._capture, call, inputs)
            if graph is None:
                return call(*inputs)
            self._kept[key] = graph
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        torch._foreach_copy_(graph.inputs, list(inputs))
        return tuple(output.clone() for output in graph.replay())

    def _is_due(self, key: Hashable) -> bool:
        count = self._seen.pop(key, 0)
        self._seen[key] = count + 1
        while len(self._seen) > 16 * self._size:
            self._seen.popitem(last=False)
        return count >= self._after

    def _recorded(self, capture: Capture, call: Call, inputs: Sequence[Tensor]) -> _Graph | None:
        own = [tensor.clone() for tensor in inputs]
        try:
            return _Graph(inputs=own, replay=capture(lambda: call(*own)))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            logger.warning("a step cannot be recorded as a graph and is run as it is from now on: %s", error)
            self._capture = None
            return None
