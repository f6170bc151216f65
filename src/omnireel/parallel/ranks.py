"""This process among those that compute one request together: joining them, exchanging rows, agreeing, leaving.

One group of torch.distributed a process. It has the collectives of the device (NCCL on CUDA) and gloo for what is agreed on
the host. A group that a rank left in the middle of its work is of no use any more: all join another, of the next generation,
under a name of its own in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import distributed

from omnireel.errors import RankLost

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.parallel.member import Member

logger = logging.getLogger(__name__)

COLLECTIVE_SECONDS = 300.0
"""How long a rank waits for the others anywhere. Who is dead or silent is found sooner, by the engine; this bounds what nobody else
would see, and has to be longer than a rank may have to itself, such as for a preview.
"""

_HOST = "gloo"


def why_not(collectives: str) -> str:
    """Why this build of torch cannot have ranks on devices with these collectives, as the end of a sentence; "" when it can."""
    if not distributed.is_available():
        return "this build of torch has no torch.distributed"
    missing = [name for name in (_HOST, collectives) if not distributed.is_backend_available(name)]
    return f"this build of torch has no {' and no '.join(missing)}" if missing else ""


class Ranks:
    """The group of this process. Called by one thread, but for `abort`.

    Args:
        member: which one this process is.
        device: where it computes.
        collectives: the backend of torch.distributed for that kind of device.
        timeout_seconds: how long each exchange waits for the others.
    """

    def __init__(
        self, member: Member, *, device: torch.device, collectives: str, timeout_seconds: float = COLLECTIVE_SECONDS
    ) -> None:
        self.rank, self.size = member.rank, member.size
        self.device = device
        self._backend = _HOST if device.type == "cpu" else f"cpu:{_HOST},{device.type}:{collectives}"
        self._timeout = timedelta(seconds=timeout_seconds)
        # One for all generations: each opens the file anew, and its end would remove it.
        self._store = distributed.FileStore(member.store, member.size)  # type: ignore[attr-defined]

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that speaks for all, and alone decodes."""
        return self.rank == 0

    @property
    def is_joined(self) -> bool:
        """Whether this process is in a group now."""
        return distributed.is_initialized()

    def join(self, generation: int = 0) -> None:
        """Waits for all others to join the same generation; leaves the one before.

        Raises:
            RankLost: they did not come.
        """
        self.leave()
        with self._together("joined the others"):
            distributed.init_process_group(
                self._backend,
                store=distributed.PrefixStore(f"generation-{generation}", self._store),  # type: ignore[attr-defined]
                rank=self.rank,
                world_size=self.size,
                timeout=self._timeout,
                device_id=None if self.device.type == "cpu" else self.device,
            )
            # Connections are opened by the first exchange, and whoever cannot have one should know it now.
            self.exchange(torch.zeros(self.size, 1, device=self.device), [1] * self.size, [1] * self.size)
        logger.debug("rank %d of %d is in generation %d", self.rank, self.size, generation)

    def leave(self) -> None:
        """Closes what leads to the others, whose exchanges with this one fail then; without a group nothing happens."""
        if not distributed.is_initialized():
            return
        self.abort()
        try:
            distributed.destroy_process_group()
        except RuntimeError as error:
            logger.warning("rank %d left its group with an error: %s", self.rank, error)

    def abort(self) -> None:
        """Ends what the device waits for, where its collectives can (NCCL does, gloo does not); for any thread."""
        world = distributed.group.WORLD
        if world is None:
            return
        try:
            world.abort()
        except RuntimeError as error:
            logger.warning("rank %d cannot end its collectives: %s", self.rank, error)

    def agree(self, word: int) -> tuple[int, ...]:
        """What each rank says at this point, by rank; waits for all of them.

        Raises:
            RankLost: one does not answer.
        """
        with self._together("agreed with the others"):
            said = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
            distributed.all_gather(said, torch.tensor([word]))
        return tuple(int(item) for item in said)

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Rows along dim 0, contiguous: the first sent[0] go to rank 0, the next sent[1] to rank 1, and so on; received: how many come
        from each, which are given in the order of ranks.

        Raises:
            RankLost: one is gone, or does not come to this point.
        """
        taken = rows.new_empty(sum(received), *rows.shape[1:])
        with self._together("exchanged rows"):
            distributed.all_to_all_single(taken, rows, list(received), list(sent))
        return taken

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:
            logger.debug("rank %d never %s: %s", self.rank, what, error)
            raise RankLost(self.rank, what) from error
