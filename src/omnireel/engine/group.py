"""The ranks of a replica as one worker: what one link leads to are several processes that compute the same requests together.

The engine hears the first rank; of the others it hears that they live, end and fail. A request has ended when it has on every rank,
by the error of the one that failed by itself where there is one. A rank that dies, or says nothing, takes the others with it.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from omnireel.engine.child import Child
from omnireel.engine.executors.process import SubprocessLink
from omnireel.engine.link import LinkClosed, in_blocks
from omnireel.engine.message import Kind, StageMessage
from omnireel.errors import OmniReelError, RankLost, UnsupportedDevice
from omnireel.observe.env import environment
from omnireel.parallel.member import Member

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from omnireel.engine.build import WorkerSpec

logger = logging.getLogger(__name__)

ABORT_SECONDS, GIVE_UP_SECONDS = 2.0, 30.0
"""After the first failure of a request: when ranks that have not ended it are told that they wait in vain, and when all are killed."""

_VARIABLES: Mapping[str, str] = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
}
"""Ranks of one machine listen to nobody else, and NCCL that loses a rank ends its communicator rather than the process; variables of
the user's own win.
"""


@dataclass(slots=True)
class _Tally:
    """What the ranks made of a request, or of loading, whose id is empty."""

    told: dict[int, StageMessage] = field(default_factory=dict)
    failed_at: float | None = None
    is_aborted: bool = False


class GroupLink:
    """See `Link`.

    Args:
        spec: what the ranks are made of.

    Raises:
        UnsupportedDevice: this system cannot give processes a file without a name to find each other by.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        if not sys.platform.startswith("linux"):
            raise UnsupportedDevice("Linux, for ranks that compute a request together", sys.platform)
        self._name = spec.name
        env = {**_VARIABLES, **{key: value for key, value in environment().items() if key in _VARIABLES}, **spec.env}
        self._specs: list[WorkerSpec] = []
        self._links: list[SubprocessLink] = []
        # Nobody else can open it, and it is gone with the last process, however that ends.
        store = os.memfd_create("omnireel-ranks", 0)
        try:
            for rank in range(len(spec.members)):
                member = Member(rank=rank, size=len(spec.members), store=f"/proc/self/fd/{store}")
                self._specs.append(spec.of_member(member))
                self._links.append(SubprocessLink(Child(f"{spec.name}-{rank}", env, spec.worker_cls, [store])))
        except BaseException:
            for link in self._links:
                link.kill()
                link.close(1.0)
            raise
        finally:
            os.close(store)
        self._poll = select.poll()
        for link in self._links:
            self._poll.register(link.fileno(), select.POLLIN)
        self._ranks = {link.fileno(): rank for rank, link in enumerate(self._links)}
        self._tallies: dict[str, _Tally] = {}
        self._traces: list[deque[StageMessage]] = [deque() for _ in self._links]
        self._merged: deque[StageMessage] = deque()
        self._silent: set[int] = set()
        self._generation = 0
        self._is_scattered = False
        self._lost: int | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """See `Link.pids`."""
        return tuple(pid for link in self._links for pid in link.pids)

    def send(self, message: StageMessage) -> None:
        """See `Wire.send`; to every rank. Before a request they come together again, where one had left."""
        if message.kind is Kind.RUN and self._is_scattered:
            self._is_scattered = False
            self._generation += 1
            self._to_all(StageMessage(kind=Kind.JOIN, body=self._generation))
        if message.kind is Kind.RUN:
            message = in_blocks(message)
        if message.kind is Kind.PING:
            self._silent = set(range(len(self._links)))
        self._to_all(message)

    def receive(self, timeout_seconds: float) -> StageMessage | None:
        """See `Wire.receive`: a message of the first rank, or what all of them came to."""
        until = time.monotonic() + timeout_seconds
        while not self._merged:
            self._look_at_late_ones()
            left = max(0.0, until - time.monotonic())
            ready = self._poll.poll(1000 * left)
            if not ready and not self._merged:
                return None
            for fd, _ in ready:
                try:
                    self._hear(self._ranks[fd])
                except LinkClosed:
                    # It is found closed again once what came before has been told.
                    if not self._merged:
                        raise
        return self._merged.popleft()

    def kill(self) -> None:
        """See `Link.kill`."""
        if self._silent and self._lost is None:
            self._lost = min(self._silent)
            logger.warning("rank %d of worker %s had not answered when it was ended", self._lost, self._name)
        for link in self._links:
            link.kill()

    def close(self, timeout_seconds: float) -> bool:
        """See `Link.close`. Where a rank is gone the others are not waited for; whether that one ended itself is told then."""
        until = time.monotonic() + timeout_seconds
        if self._lost is not None:
            is_own = self._links[self._lost].close(timeout_seconds)
            for link in self._links:
                link.kill()
        ended = [link.close(max(0.0, until - time.monotonic())) for link in self._links]
        return all(ended) if self._lost is None else is_own

    def epitaph(self) -> tuple[str, tuple[str, ...]]:
        """See `Link.epitaph`: of the rank that was lost first."""
        rank = self._lost or 0
        how, lines = self._links[rank].epitaph()
        return f"rank {rank}: {how}", lines

    def _to_all(self, message: StageMessage) -> None:
        for rank, link in enumerate(self._links):
            own = replace(message, body=self._specs[rank]) if message.kind is Kind.LOAD else message
            try:
                link.send(own)
            except LinkClosed:
                self._lose(rank)
                raise
            except (TypeError, ValueError, RecursionError, MemoryError) as error:
                if not rank:
                    raise
                # The ranks before it begin, and would wait for this one.
                self._lose(rank)
                raise LinkClosed(f"rank {rank} cannot be sent what others were sent") from error

    def _lose(self, rank: int) -> None:
        if self._lost is None:
            self._lost = rank

    def _hear(self, rank: int) -> None:
        try:
            message = self._links[rank].receive(0.0)
        except LinkClosed:
            self._lose(rank)
            raise
        if message is None:
            return
        was_silent = rank in self._silent
        self._silent.discard(rank)
        if message.kind is Kind.PONG:
            # The engine hears a sign of life when all have given one.
            if was_silent and not self._silent:
                self._merged.append(message)
        elif message.kind is Kind.LEFT:
            self._is_scattered = True
        elif message.kind is Kind.PROFILED:
            self._traces[rank].append(message)
            if all(self._traces):
                self._merged.append(_all_traces([answers.popleft() for answers in self._traces]))
        elif message.kind in (Kind.READY, Kind.DONE, Kind.FAILED):
            self._count(rank, message)
        elif rank == 0:
            self._merged.append(message)

    def _count(self, rank: int, message: StageMessage) -> None:
        key, is_failure = message.request_id, message.kind is Kind.FAILED
        if is_failure and not key and not isinstance(message.body, RankLost):
            # Others may go on loading for minutes.
            self._merged.append(message)
            return
        tally = self._tallies.setdefault(key, _Tally())
        tally.told[rank] = message
        if is_failure:
            tally.failed_at = tally.failed_at or time.monotonic()
        if len(tally.told) == len(self._links):
            del self._tallies[key]
            self._merged.append(_outcome(tally))

    def _look_at_late_ones(self) -> None:
        """Ranks that have not ended what another failed in."""
        for key, tally in list(self._tallies.items()):
            late = 0.0 if tally.failed_at is None else time.monotonic() - tally.failed_at
            if late > ABORT_SECONDS and not tally.is_aborted:
                tally.is_aborted = True
                for rank in self._missing(tally):
                    self._links[rank].send(StageMessage(kind=Kind.ABORT))
            if late > GIVE_UP_SECONDS:
                del self._tallies[key]
                self._lose(self._missing(tally)[0])
                self._merged.append(_outcome(tally))
                # Its socket is found closed the next time.
                for link in self._links:
                    link.kill()

    def _missing(self, tally: _Tally) -> list[int]:
        return [rank for rank in range(len(self._links)) if rank not in tally.told]


def _outcome(tally: _Tally) -> StageMessage:
    """What is told of all: the error of who failed by itself, else any, else what the first rank made."""
    failures = [message for message in tally.told.values() if message.kind is Kind.FAILED]
    if failures:
        return next((message for message in failures if not isinstance(message.body, RankLost)), failures[0])
    first = tally.told[0]
    if first.kind is Kind.READY:
        return first
    peak = max(message.body.peak_memory_mb for message in tally.told.values())
    return replace(first, body=replace(first.body, peak_memory_mb=peak))


def _all_traces(answers: list[StageMessage]) -> StageMessage:
    """The files of all ranks; an error only where there is no file."""
    bodies: list[tuple[Path, ...] | OmniReelError] = [answer.body for answer in answers]
    files = tuple(path for body in bodies if not isinstance(body, OmniReelError) for path in body)
    failure = next((body for body in bodies if isinstance(body, OmniReelError)), None)
    return StageMessage(kind=Kind.PROFILED, body=files if files or failure is None else failure)
