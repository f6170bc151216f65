"""The real group, in processes of their own: exchanges of every type, agreeing, leaving, and coming together again."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import json, sys, time, torch
from omnireel.errors import RankLost
from omnireel.parallel import Member, Ranks, gather_rows, shares

rank, size, fd = (int(word) for word in sys.argv[1:])
member = Member(rank=rank, size=size, store=f"/proc/self/fd/{fd}")
ranks = Ranks(member, device=torch.device("cpu"), collectives="gloo", timeout_seconds=20)
found = {}
ranks.join()
found["words"] = ranks.agree(10 + rank)
whole = torch.arange(7 * 3).reshape(1, 7, 3)
start = sum(shares(7, size)[:rank])
own = whole[:, start : start + shares(7, size)[rank]]
types = torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64
found["wrong"] = [
    str(kind) for kind in types if not torch.equal(gather_rows(ranks, own.to(kind), shares(7, size)), whole.to(kind))
]
ranks.agree(0)
if rank == size - 1:
    ranks.leave()
else:
    began = time.monotonic()
    try:
        gather_rows(ranks, own.float(), shares(7, size))
    except RankLost as error:
        found["lost"] = error.message
    found["seconds"] = time.monotonic() - began
ranks.leave()
ranks.leave()
ranks.join(1)
found["again"] = ranks.agree(rank)
ranks.leave()
print(json.dumps(found))
"""


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_exchange_agree_leave_and_come_together_again(size):
    store = os.memfd_create("test-ranks", 0)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(size), str(store)],
            pass_fds=[store], env=env, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    os.close(store)
    found = [json.loads(process.communicate(timeout=100)[0]) for process in processes]
    for rank, said in enumerate(found):
        assert said["words"] == [10 + other for other in range(size)]
        assert said["again"] == list(range(size))
        assert said["wrong"] == []
        if rank < size - 1:
            assert said["lost"] == f"rank {rank} lost the others: it never exchanged rows"
            assert said["seconds"] < 15
