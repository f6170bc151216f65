"""The real group, in processes of their own: exchanges of every type, agreeing, leaving, and coming together again."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import json, sys, threading, time, torch
from omnireel.errors import RankLost
from omnireel.parallel import Member, Ranks, gather_rows, shares

rank, size, fd = (int(word) for word in sys.argv[1:4])
kind = sys.argv[4]
device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
if kind != "cpu":
    torch.cuda.set_device(device)
member = Member(rank=rank, size=size, store=f"/proc/self/fd/{fd}")
ranks = Ranks(member, device=device, collectives="gloo" if kind == "cpu" else "nccl", timeout_seconds=20)
found = {}
ranks.join()
found["words"] = ranks.agree(10 + rank)
whole = torch.arange(7 * 3, device=device).reshape(1, 7, 3)
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
    # A device does not see that a rank is gone, and is told.
    threading.Timer(2, ranks.abort).start()
    try:
        gather_rows(ranks, own.float(), shares(7, size)).cpu()
        ranks.agree(0)
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


CARDS = pytest.param(2, "cuda", marks=pytest.mark.gpus(2))


@pytest.mark.parametrize(("size", "kind"), [(2, "cpu"), (4, "cpu"), CARDS])
def test_ranks_exchange_agree_leave_and_come_together_again(size, kind):
    store = os.memfd_create("test-ranks", 0)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(size), str(store), kind],
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
            assert said["lost"].startswith(f"rank {rank} lost the others: it never ")
            assert said["seconds"] < 15
