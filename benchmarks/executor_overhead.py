"""What a worker process costs over the same model in this process: milliseconds a request and a step, and their ratio.

    PYTHONPATH=src:. python -m benchmarks.executor_overhead --output result.json

Two engines on the toy model, one in this process and one in a worker, are asked in turns, so that whatever else the machine does
meets both alike. Requests of few and of many steps tell what a step costs from what a request costs; a third kind, with
frames of 1024x768, tells what large results cost. Medians over all rounds. `--ranks N` adds a third engine, of N processes that share
each request: a step of theirs exchanges rows once and agrees once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from omnireel import DiffusionSamplingParams, Omni

SMALL = {"height": 32, "width": 32, "num_frames": 1}
LARGE = {"height": 768, "width": 1024, "num_frames": 48}
FEW, MANY = 2, 102
"""Points of a schedule, which are one step and a hundred and one."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--large-rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    result = measured(arguments.rounds, arguments.large_rounds, arguments.ranks)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name.startswith("summary")}))


def measured(rounds: int, large_rounds: int, ranks: int = 1) -> dict[str, Any]:
    """Every figure; times are milliseconds."""
    flags: dict[str, Any] = {"device": "cpu", "num_threads": 1}
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(Omni("toy", distributed_executor_backend=name, **flags)) for name in ("uni", "mp")
        }
        if ranks > 1:
            engines["ranks"] = stack.enter_context(Omni("toy", ulysses_degree=ranks, **flags))
        cases = {
            "few_steps": _times(engines, rounds, num_inference_steps=FEW, **SMALL),
            "many_steps": _times(engines, rounds, num_inference_steps=MANY, **SMALL),
            "large_frames": _times(engines, large_rounds, num_inference_steps=FEW, **LARGE),
        }
    shared = {"ranks": ranks, "summary_ranks": _summary(cases, "ranks")} if ranks > 1 else {}
    return {"environment": _environment(), "cases": cases, "summary": _summary(cases), **shared}


def _times(engines: dict[str, Omni], rounds: int, **asked: Any) -> dict[str, list[float]]:
    sampling = DiffusionSamplingParams(seed=1, **asked)
    times: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 2):
        for name, engine in engines.items():
            start = time.perf_counter()
            engine.generate("a kite", sampling)
            # The first two rounds are a warm-up.
            if number >= 2:
                times[name].append(1000 * (time.perf_counter() - start))
    return times


def _summary(cases: dict[str, dict[str, list[float]]], other: str = "mp") -> dict[str, float]:
    """What the other place costs over this process."""
    median = {(case, name): statistics.median(times[name]) for case, times in cases.items() for name in ("uni", other)}
    extra = {case: median[case, other] - median[case, "uni"] for case in cases}
    a_step = (extra["many_steps"] - extra["few_steps"]) / (MANY - FEW)
    return {
        "extra_ms_a_step": a_step,
        "extra_ms_a_request": extra["few_steps"] - a_step * (FEW - 1),
        "extra_ms_large_frames": extra["large_frames"],
        **{f"ratio_{case}": median[case, other] / median[case, "uni"] for case in cases},
        **{f"ms_{case}_{name}": value for (case, name), value in median.items()},
    }


def _environment() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
