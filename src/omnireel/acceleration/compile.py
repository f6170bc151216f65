"""Regional compilation: the repeated blocks of a module, each by itself, so that one graph serves all of a list.

Shapes that may differ between requests are symbols in the graph: a new prompt, seed, duration or size finds the graph that
is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = logging.getLogger(__name__)


def compile_blocks(
    module: nn.Module, paths: Sequence[str], *, name: str, backend: str | Callable[..., Any] = "inductor"
) -> int:
    """Compiles every block of the lists at `paths`, when it is first called; returns how many there are.

    Args:
        module: a component of a pipeline.
        paths: dotted paths of its lists of blocks, from the model's facts.
        name: of the component, for the log.
        backend: as `torch.compile` takes it.
    """
    blocks = [block for path in paths for block in module.get_submodule(path).children()]
    for block in blocks:
        # Dynamic from the first call on: else the second size of clip would compile everything a second time.
        block.compile(dynamic=True, backend=backend)
    logger.info("compiling %d blocks of %s (%s) when they are first used", len(blocks), name, ", ".join(paths))
    return len(blocks)


def mark_dynamic(*dims: tuple[Tensor, int]) -> None:
    """Says that sizes differ from call to call, each a tensor and its dim. Tensors that reach a block inside of an object are
    taken for fixed otherwise.
    """
    for tensor, dim in dims:
        torch._dynamo.maybe_mark_dynamic(tensor, dim)


def num_graphs() -> int:
    """Graphs that have been compiled in this process so far; it does not rise any more once everything is warm."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
