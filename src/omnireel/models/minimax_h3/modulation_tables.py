"""All modulation tables of a schedule, computed before its first step, so that the weights they are made of need no place on
the card: 13.0 of the DiT's 33.1 billion parameters see four rows a step at most.

The values are those of computing them in the step, bit for bit: the same products of the same shapes. The weights stay in
host memory and cross over one block at a time, when a schedule is new. Letters: M distinct timesteps of a step, R = 3M rows
of a block's table, H hidden.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, StepTables, modulation_table

if TYPE_CHECKING:
    from omnireel.layers import Linear

logger = logging.getLogger(__name__)

CACHE_BYTES = 4 * 2**30
"""Tables that are kept for later requests. One schedule of 49 steps with two timesteps each takes 0.97 GB at released sizes."""

_HOST_PARTS = ("adaln_proj.linear.", "norm_out.linear.")


def is_table_weight(name: str) -> bool:
    """Whether the weight of that name serves the tables alone, so that it may stay off the card."""
    return any(part in name for part in _HOST_PARTS)


@dataclass(slots=True, kw_only=True)
class _Schedule:
    """Tables of one schedule: by place, the stamp of the weights and a table for each step."""

    tables: dict[int, tuple[tuple[object, ...], tuple[Tensor, ...]]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(table.nbytes for _, steps in self.tables.values() for table in steps)


class ModulationTables:
    """Makes and keeps the tables of one DiT.

    Weights that were changed, by an adapter for instance, are told by their memory and version: of a schedule that is kept,
    the tables of those blocks are made again and no others; a changed time embedding makes all of them again.

    Args:
        transformer: whose tables; its table weights lie on the host or where it runs.
        digest: of the weight files.
        capacity_bytes: what may be kept, the last used schedules first; one larger than that is made and not kept.
    """

    def __init__(
        self, transformer: MiniMaxH3Transformer, *, digest: str = "", capacity_bytes: int = CACHE_BYTES
    ) -> None:
        self._transformer = transformer
        self._digest = digest
        self._capacity = capacity_bytes
        self._device = transformer.proj_in.weight.device
        self._kept: OrderedDict[str, _Schedule] = OrderedDict()
        self.num_made = 0
        """Tables of a block, over all steps of a schedule, that have been computed so far."""

    def of(self, timesteps: Sequence[Tensor]) -> tuple[StepTables, ...]:
        """The tables of each step, in order. timesteps: float32 [M] of each step, on the CPU; steps with the same timesteps
        share their tables.
        """
        distinct: dict[bytes, Tensor] = {}
        for step in timesteps:
            distinct.setdefault(step.numpy().tobytes(), step)
        key = self._key(tuple(distinct))
        schedule = self._kept.pop(key, None) or _Schedule()
        made = self._complete(schedule, list(distinct.values()))
        if made:
            logger.info("modulation tables: %d of %d places made, %d steps, %.0f MB", made, self._num_places,
                        len(timesteps), schedule.size_bytes / 1e6)  # fmt: skip
        self._keep(key, schedule)
        columns = [schedule.tables[place][1] for place in range(self._num_places)]
        by_step = {
            name: StepTables(blocks=tuple(column[k] for column in columns[:-1]), out=columns[-1][k])
            for k, name in enumerate(distinct)
        }
        return tuple(by_step[step.numpy().tobytes()] for step in timesteps)

    @property
    def _num_places(self) -> int:
        return len(self._transformer.transformer_blocks) + 1

    def _key(self, steps: tuple[bytes, ...]) -> str:
        total = hashlib.sha256(self._digest.encode())
        for step in steps:
            total.update(len(step).to_bytes(4, "little") + step)
        return total.hexdigest()

    def _complete(self, schedule: _Schedule, steps: list[Tensor]) -> int:
        """Makes what is missing or out of date; returns how many places that were."""
        time = _stamp(self._transformer.time_embedder.linear_1, self._transformer.time_embedder.linear_2)
        stale = [
            (place, (*time, *_stamp(linear)))
            for place, linear in enumerate(self._linears())
            if schedule.tables.get(place, ((),))[0] != (*time, *_stamp(linear))
        ]
        if not stale:
            return 0
        embedded = [self._transformer.time_embedding(step.to(self._device)) for step in steps]
        linears = self._linears()
        for place, stamp in stale:
            linear, is_last = linears[place], place == self._num_places - 1
            # One block's weights at a time: what was used before is free again when the next arrives.
            move = partial(Tensor.to, device=self._device, non_blocking=True)
            weight, bias = move(linear.weight), None if linear.bias is None else move(linear.bias)
            width, places = self._transformer.config.hidden_size, 2 if is_last else 6
            tables = [modulation_table(time_ME, weight, bias, width=width, places=places) for time_ME in embedded]
            schedule.tables[place] = stamp, tuple(tables)
        self.num_made += len(stale)
        return len(stale)

    def _linears(self) -> list[Linear]:
        return [*(block.adaln_proj.linear for block in self._transformer.blocks), self._transformer.norm_out.linear]

    def _keep(self, key: str, schedule: _Schedule) -> None:
        self._kept[key] = schedule
        while self._kept and sum(entry.size_bytes for entry in self._kept.values()) > self._capacity:
            self._kept.popitem(last=False)


def _stamp(*linears: Linear) -> tuple[object, ...]:
    """Changes when the weights are replaced or written to; tensors made in inference mode do not count their versions."""
    tensors = [tensor for linear in linears for tensor in (linear.weight, linear.bias) if tensor is not None]
    return tuple((tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors)


def keep_on_host(transformer: MiniMaxH3Transformer, *, pinned: bool) -> None:
    """Prepares table weights that were loaded to the host for crossing over; pinned memory crosses several times faster."""
    if not pinned:
        return
    for name, parameter in transformer.named_parameters():
        if is_table_weight(name) and parameter.device.type == "cpu":
            owner_path, _, leaf = name.rpartition(".")
            owner = transformer.get_submodule(owner_path)
            owner._parameters[leaf] = torch.nn.Parameter(
                parameter.detach().contiguous().pin_memory(), requires_grad=False
            )
