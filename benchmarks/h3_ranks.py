"""Seconds of one evaluation of the MiniMax-H3 DiT by one device and shared by several, with random weights of the released sizes.

    PYTHONPATH=src python benchmarks/h3_ranks.py --degrees 1,2,4 --output result.json

Each degree has as many processes, one a card, that share each evaluation by Ulysses. The outputs of every degree are compared with
those of the first one. `--config tiny --device cpu` runs anywhere in seconds, as a test of this script.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.h3_step import RELEASED, SHAPES, TINY, build, make_inputs, our_step, random_weights, relative_error

from omnireel.layers.kernels import fused
from omnireel.parallel import Member, Ranks

CONFIGS = {"released": RELEASED, "tiny": TINY}


def main() -> None:
    """The command line; also that of one rank, which is started with `--rank`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--degrees", default="1,2", help="numbers of ranks, the one that others are compared with first"
    )
    parser.add_argument("--config", choices=sorted(CONFIGS), default="released")
    parser.add_argument("--device", default="cuda", help="kind of device")
    parser.add_argument("--backend", default="CUDNN_ATTN", help="attention backend")
    parser.add_argument("--fused", action="store_true", help="fused kernels between the matrix products")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit-seconds", type=float, default=300.0, help="time that one degree may take")
    parser.add_argument("--output", type=Path, default=Path("h3_ranks.json"))
    for name in ("rank", "size", "store"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        be_a_rank(arguments)
        return
    result: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else arguments.device,
        "arguments": {name: str(value) for name, value in vars(arguments).items() if value is not None},
        "cases": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for degree in (int(word) for word in arguments.degrees.split(",")):
            result["cases"] += run(arguments, degree, Path(folder))
            arguments.output.write_text(json.dumps(result, indent=1))
            print(json.dumps(result["cases"][-1]), flush=True)


def run(arguments: argparse.Namespace, degree: int, folder: Path) -> list[dict[str, Any]]:
    """What the ranks of one degree measured."""
    store = os.memfd_create("ranks", 0)
    command = [sys.executable, __file__, "--config", arguments.config, "--device", arguments.device]
    command += ["--backend", arguments.backend, "--repeats", str(arguments.repeats), "--folder", str(folder)]
    command += ["--fused"] if arguments.fused else []
    env = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **os.environ}
    ranks = [
        subprocess.Popen(
            [*command, "--rank", str(rank), "--size", str(degree), "--store", str(store)], pass_fds=[store], env=env
        )
        for rank in range(degree)
    ]
    os.close(store)
    until = time.monotonic() + arguments.limit_seconds
    try:
        codes = [rank.wait(max(0.0, until - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(codes):
        raise SystemExit(f"ranks of degree {degree} ended with {codes}")
    return [dict(case) for case in json.loads((folder / f"{degree}.json").read_text())]


@torch.inference_mode()
def be_a_rank(arguments: argparse.Namespace) -> None:
    """Measures every shape; the first rank writes it down."""
    kind, rank, size = arguments.device, arguments.rank, arguments.size
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, rank)
    if kind == "cuda":
        torch.cuda.set_device(device)
    config, cases = CONFIGS[arguments.config], []
    model = build(config, kind, arguments.backend, torch.bfloat16, random_weights(config, kind))
    if arguments.fused:
        model.kernels = fused()
        model.pack_projections()
    member = Member(rank=rank, size=size, store=f"/proc/self/fd/{arguments.store}")
    ranks = Ranks(member, device=device, collectives="nccl" if kind == "cuda" else "gloo")
    ranks.join()
    if size > 1:
        model.ranks = ranks
        for block in model.blocks:
            block.attn.attend.ranks = ranks
    for shape in SHAPES[arguments.config]:
        step = our_step(model, make_inputs(config, shape, kind))
        outputs = step()
        seconds = []
        for _ in range(arguments.repeats):
            ranks.agree(0)
            began = time.perf_counter()
            step()
            if kind == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        case = {"shape": shape.name, "ranks": size, "median_seconds": statistics.median(seconds), "seconds": seconds}
        if kind == "cuda":
            case["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if rank == 0:
            cases.append(
                case | _compared(arguments.folder / f"{shape.name}.pt", [item.float().cpu() for item in outputs])
            )
    if rank == 0:
        (arguments.folder / f"{size}.json").write_text(json.dumps(cases))
    ranks.agree(0)
    ranks.leave()


def _compared(path: Path, outputs: list[torch.Tensor]) -> dict[str, Any]:
    """How far they are from the first ones, which are kept."""
    if not path.exists():
        torch.save(outputs, path)
        return {}
    first = torch.load(path, weights_only=True)
    return {"relative_error": relative_error((outputs[0], outputs[1]), (first[0], first[1]))}


if __name__ == "__main__":
    main()
