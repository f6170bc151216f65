"""Whether every fused kernel and every attention backend that is there gives what its oracle gives on this device.

    PYTHONPATH=src:. python -m benchmarks.h3_check --output checks.jsonl

One line of JSON an item, written as soon as it is known; an item that began and has no result took the process down, so a
caller that runs this in a process of its own can go on without it (`--skip`). Fused kernels are compared with the plain spelling
at the size of a whole step, attention with torch's arithmetic in float32.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.h3_speed import compared, kernel_cases
from benchmarks.h3_step import RELEASED, SHAPES, TINY, capability_of, make_inputs

from omnireel.attention import AttentionBackend, AttentionMetadata, Place, all_backends, why_unavailable
from omnireel.layers import PLAIN
from omnireel.layers.kernels import fused, why_not_fused
from omnireel.layers.kernels.frames import PlainFrames, Window, frame_kernels

KERNEL, ATTENTION = "kernel ", "attention "
KERNEL_BOUND, ATTENTION_BOUND = 5e-3, 2e-2
"""Norm of the difference over the norm of the values: half precision rounds at other places, nothing more."""
HEAD_DIMS = (128, 64)
TRIES, SECONDS_A_TRY = 3, 90.0

Item = Callable[[], float]


def items(config: str, kind: str) -> Iterator[tuple[str, float, Item]]:
    """Name, the largest difference that is right, and what tells the difference."""
    if kind == "cuda" and why_not_fused() is None:
        inputs = make_inputs(RELEASED if config == "released" else TINY, SHAPES[config][0], kind)
        for name, case in kernel_cases(RELEASED if config == "released" else TINY, inputs, kind).items():
            yield f"{KERNEL}{name.split()[0]}", KERNEL_BOUND, partial(kernel_difference, case)
        for taps in (1, 3):
            yield f"{KERNEL}windows {taps}", KERNEL_BOUND, partial(frames_difference, taps, kind)
    place = Place(platform=kind, capability=capability_of(kind))
    for backend in all_backends():
        if why_unavailable(backend, place) is None:
            for dim in HEAD_DIMS:
                if not backend.can.head_dims or dim in backend.can.head_dims:
                    call = partial(attention_difference, backend, place, dim, kind)
                    yield f"{ATTENTION}{backend.name} {dim}", ATTENTION_BOUND, call


def kernel_difference(case: Any) -> float:
    """Of the Triton kernel from the plain spelling."""
    return float(compared(case.run(fused()), case.run(PLAIN))["relative_difference"])


def frames_difference(taps: int, kind: str) -> float:
    """Of the kernels between the encoder's convolutions from their plain spelling, on two tiles."""
    x = torch.randn(2, 5, 40, 64, 128, device=kind, generator=torch.Generator(kind).manual_seed(0)).half()
    norm = torch.nn.GroupNorm(32, 128, device=kind, dtype=torch.float16)
    window = Window(taps=taps, past=2, stride=1, margins=(1, 1))
    made = []
    for kernels in (frame_kernels(torch.device(kind)), PlainFrames()):
        stream = x.clone()
        told = kernels.group_norm(stream, norm, x.flip(1).contiguous())
        made.append([kernels.windows(stream, window, told), stream])
    return float(compared(*made)["relative_difference"])


def attention_difference(backend: AttentionBackend, place: Place, dim: int, kind: str) -> float:
    """Of a backend from torch's arithmetic in float32, on queries that are part of a wider projection as in a model."""
    rows, heads = 1000, 4
    dtype = torch.bfloat16 if not backend.can.dtypes or torch.bfloat16 in backend.can.dtypes else backend.can.dtypes[0]
    packed = torch.randn(1, rows, 3, heads, dim, device=kind, generator=torch.Generator(kind).manual_seed(0)).to(dtype)
    q, k, v = packed.unbind(2)
    made = backend.bind(place, None).forward(q, k, v, scale=dim**-0.5, causal=False, metadata=AttentionMetadata())
    wide = [each.float().transpose(1, 2) for each in (q, k, v)]
    scores = wide[0] @ wide[1].transpose(2, 3) * dim**-0.5
    expected = (scores.softmax(-1) @ wide[2]).transpose(1, 2)
    return float(((made.float() - expected).norm() / expected.norm()).item())


def checked(config: str, kind: str, folder: Path) -> dict[str, dict[str, Any]]:
    """By item, whether it is right, in processes of their own: what takes one down is wrong, and the others are still told."""
    file = folder / "checks.jsonl"
    told: dict[str, dict[str, Any]] = {}
    for _ in range(TRIES):
        file.write_text("")
        command = [sys.executable, "-m", "benchmarks.h3_check", "--config", config, "--device", kind]
        command += ["--output", str(file), "--skip", *told]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_A_TRY)
            problem = "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr[-600:]}"
        except subprocess.TimeoutExpired:
            problem = f"no answer in {SECONDS_A_TRY:.0f} s"
        for line in file.read_text().splitlines():
            row = json.loads(line)
            told[row["item"]] = row
        for row in told.values():
            if "is_right" not in row:
                row |= {"is_right": False, "problem": problem}
        if not problem:
            break
    return told


def is_lost(kind: str) -> bool:
    """Whether a kernel broke the device for this process, so that every later call fails as well."""
    try:
        if kind == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="lines are added to this file")
    parser.add_argument("--config", choices=tuple(SHAPES), default="released")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--skip", nargs="*", default=[], metavar="ITEM", help="items that are told already")
    arguments = parser.parse_args(argv)
    with arguments.output.open("a") as output, torch.inference_mode():

        def tell(**row: Any) -> None:
            output.write(json.dumps(row) + "\n")
            output.flush()

        for name, bound, call in items(arguments.config, arguments.device):
            if name in arguments.skip:
                continue
            tell(item=name)
            begin = time.perf_counter()
            try:
                difference = call()
                if arguments.device == "cuda":
                    torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001 - the others are to be told too
                tell(item=name, is_right=False, problem=f"{type(error).__name__}: {error}"[:600])
                if is_lost(arguments.device):
                    sys.exit("the device is lost to this process")
            else:
                tell(item=name, is_right=difference <= bound, relative_difference=difference, bound=bound,
                     seconds=time.perf_counter() - begin)  # fmt: skip


if __name__ == "__main__":
    main()
