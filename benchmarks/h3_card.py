"""What a card says of itself while it works: clock, power, and why it holds back."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FIELDS = ("clocks.sm", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu", "clocks_event_reasons.active")
NAMES = ("clock_mhz", "max_clock_mhz", "power_w", "power_limit_w", "temperature_c", "reasons")
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
}
EVERY_MS = 100


@contextmanager
def watched(kind: str) -> Iterator[dict[str, Any]]:
    """Fills in what the first card said while the body ran; nothing but the problem where it could not be asked."""
    told: dict[str, Any] = {}
    if kind != "cuda":
        yield told
        return
    command = [
        "nvidia-smi",
        "-i",
        "0",
        f"--query-gpu={','.join(FIELDS)}",
        "--format=csv,noheader,nounits",
        "-lms",
        str(EVERY_MS),
    ]
    with tempfile.TemporaryFile("w+") as output:
        try:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
        except OSError as error:
            told["problem"] = str(error)
            yield told
            return
        try:
            yield told
        finally:
            process.terminate()
            process.wait(timeout=10)
            output.seek(0)
            told |= summary(output.read().splitlines())


def summary(lines: list[str]) -> dict[str, Any]:
    """Medians and extremes of the samples, and the share of them in which each reason held the clock down."""
    rows = [row for line in lines if (row := parsed(line)) is not None]
    if not rows:
        return {"problem": "\n".join(lines)[-300:] or "no sample was taken"}
    told: dict[str, Any] = {"samples": len(rows)}
    for place, name in enumerate(NAMES[:-1]):
        values = [row[place] for row in rows]
        told[name] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    told["held_back"] = {
        name: sum(bool(int(row[-1]) & bit) for row in rows) / len(rows)
        for bit, name in REASONS.items()
        if any(int(row[-1]) & bit for row in rows)
    }
    return told


def parsed(line: str) -> list[float] | None:
    """The numbers of a sample; the last is a mask of bits."""
    words = [word.strip() for word in line.split(",")]
    try:
        return [*(float(word) for word in words[:-1]), int(words[-1], 0)] if len(words) == len(FIELDS) else None
    except ValueError:
        return None
