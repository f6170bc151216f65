"""The last presentations that the text encoder read, so that a prompt asked for again is not encoded again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from torch import Tensor

from omnireel.observe.profile import count
from omnireel.request import MediaInput

Encoded = tuple[Tensor, Tensor]


class PromptCache:
    """Keeps the states and tags of the last `size` presentations, the least recently used one going first; 0 keeps none.

    What is given out is shared and must not be written to. One cache belongs to one conditioner: its weights, type and
    device are not part of a key, while the prompt, the order and kinds of media and every pixel that is shown are.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[str, Encoded] = OrderedDict()

    def get(self, prompt: str, media: tuple[MediaInput, ...], encode: Callable[[], Encoded]) -> Encoded:
        """What was kept, or what `encode` gives now."""
        if not self._size:
            return encode()
        key = _key(prompt, media)
        count("prompt_cache_hit" if key in self._kept else "prompt_cache_miss")
        if key not in self._kept:
            self._kept[key] = encode()
        self._kept.move_to_end(key)
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return self._kept[key]


def _key(prompt: str, media: tuple[MediaInput, ...]) -> str:
    digest = hashlib.sha256(prompt.encode("utf-8", "surrogatepass"))
    for item in media:
        # A recording's content never reaches the encoder; that there is one does.
        digest.update(f"|{item.kind} {item.wave is not None} ".encode())
        if item.frames is not None:
            digest.update(f"{item.frames.shape} ".encode())
            digest.update(np.ascontiguousarray(item.frames).data)
    return digest.hexdigest()
