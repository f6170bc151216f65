"""Where a device stood still: a trace of torch's profiler as a table of gaps, the widest first.

    python tools/gaps.py trace.json

A gap is time in which none of the device's streams had work between the first and the last piece of work of the trace. Equal
neighbours are told together: what ran before, what after, how often, and for how long.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of a trace's events that keep a device busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of work, in microseconds."""

    name: str
    start: float
    stop: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """All gaps between work of two names."""

    before: str
    after: str
    count: int
    total_us: float
    longest_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GapTable:
    """`window_us` is from the first work's start to the last one's end; `idle_share` of it nothing ran."""

    window_us: float
    busy_us: float
    idle_share: float
    num_gaps: int
    gaps: tuple[Gap, ...]


def work_of(trace: Mapping[str, Any]) -> list[Work]:
    """What a Chrome trace says ran on devices.

    Raises:
        ValueError: there is none of it; the profiler recorded the host alone.
    """
    found = [
        Work(name=event["name"], start=float(event["ts"]), stop=float(event["ts"]) + float(event["dur"]))
        for event in trace.get("traceEvents", ())
        if event.get("ph") == "X" and event.get("cat") in WORK
    ]
    if not found:
        raise ValueError("the trace has no work of a device; record ProfilerActivity.CUDA")
    return found


def gap_table(work: Iterable[Work]) -> GapTable:
    """The gaps between pieces of work, which may overlap."""
    ordered = sorted(work, key=lambda item: item.start)
    groups: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    last = ordered[0]
    idle = 0.0
    for item in ordered[1:]:
        wait = item.start - last.stop
        if wait > 0:
            idle += wait
            groups[last.name, item.name].append(wait)
        if item.stop > last.stop:
            last = item
    window = last.stop - ordered[0].start
    gaps = [
        Gap(before=before, after=after, count=len(waits), total_us=sum(waits), longest_us=max(waits))
        for (before, after), waits in groups.items()
    ]
    return GapTable(
        window_us=window,
        busy_us=window - idle,
        idle_share=idle / window if window else 0.0,
        num_gaps=sum(gap.count for gap in gaps),
        gaps=tuple(sorted(gaps, key=lambda gap: -gap.total_us)),
    )


def shown(table: GapTable, top: int) -> str:
    """The table as Markdown."""
    lines = [
        f"busy {table.busy_us / 1e3:.2f} of {table.window_us / 1e3:.2f} ms, idle {table.idle_share:.2%} in {table.num_gaps} gaps",
        "",
        "| after | before | gaps | total ms | longest ms |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for gap in table.gaps[:top]:
        total, longest = gap.total_us / 1e3, gap.longest_us / 1e3
        lines.append(f"| {_short(gap.before)} | {_short(gap.after)} | {gap.count} | {total:.3f} | {longest:.3f} |")
    return "\n".join(lines)


def _short(name: str) -> str:
    clean = name.replace("|", "/")
    return clean if len(clean) <= 60 else f"{clean[:57]}..."


def main(argv: list[str] | None = None) -> int:
    """The command line; 1 when the trace cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="what profiler.export_chrome_trace wrote")
    parser.add_argument("--top", type=int, default=10, help="kinds of gaps to show")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    try:
        table = gap_table(work_of(json.loads(arguments.trace.read_text())))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(table)) if arguments.json else shown(table, arguments.top))
    return 0


if __name__ == "__main__":
    sys.exit(main())
