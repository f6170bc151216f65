"""The part `attention`: what the layout of queries, keys and values costs, by themselves and over time.

Rows of one projection lie apart by all three of them (`packed`), as three products give them by a third of that (`dense`), and with
every head by itself (`heads`) keys and values of a head are one block, for which they are copied in each layer. A card that is
held to a power draws back after a moment, so single calls are told from the first one on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.h3_card import watched
from torch import Tensor

from omnireel.attention import AttentionMetadata, all_backends

LAYOUTS = ("packed", "dense", "heads")
Tensors = tuple[Tensor, Tensor, Tensor]


def attention(run: Any) -> None:
    """Every layout with the best backend, and the first two with the next."""
    config, rows = run.config, run.rows_of(run.shapes[0])
    size = (1, rows, 3, config.num_attention_heads, config.attention_head_dim)
    packed = torch.randn(size, device=run.kind, dtype=torch.bfloat16)
    expected: Tensor | None = None
    for place, name in enumerate(run.backends[:2]):
        backend = next(item for item in all_backends() if item.name == name).bind(run.place, None)
        for layout in LAYOUTS if place == 0 else LAYOUTS[:2]:
            with run.guard(f"attention {name} {layout}"):
                q, k, v = laid_out(packed, layout)

                def call(q: Tensor = q, k: Tensor = k, v: Tensor = v, backend: Any = backend) -> Tensor:
                    made: Tensor = backend.forward(
                        q, k, v, scale=config.attention_head_dim**-0.5, causal=False, metadata=AttentionMetadata()
                    )
                    return made

                told = calls(run, call, 20 if place == 0 else 6)
                made = call()
                expected = made if expected is None else expected
                seconds, flops = told["median_seconds"], 4.0 * rows * rows * size[3] * size[4]
                run.tell(case=f"attention {name}, {layout}", rows=rows, tflops_per_second=flops / seconds / 1e12,
                         difference=((made.float() - expected.float()).norm() / expected.float().norm()).item(), **told)  # fmt: skip
                del q, k, v, made
    source = packed.unbind(2)[1]
    seconds = run.timed(lambda: head_major(source), 5)["median_seconds"]
    run.tell(case="attention, copying one of three into heads", milliseconds=1e3 * seconds)


def calls(run: Any, call: Callable[[], object], times: int) -> dict[str, Any]:
    """Seconds of each call, the last ones' median, and the card's clock."""
    call()
    run.device.wait()
    with watched(run.kind) as card:
        seconds = [run.device.seconds(call) for _ in range(times)]
    return {
        "first_seconds": seconds[0],
        "median_seconds": statistics.median(seconds[times // 2 :]),
        "seconds": seconds,
        "card": card,
    }


def laid_out(packed: Tensor, layout: str) -> Tensors:
    """Queries, keys and values of a projection [B,S,3,A,D]."""
    q, k, v = packed.unbind(2)
    if layout == "packed":
        return q, k, v
    if layout == "dense":
        return q.contiguous(), k.contiguous(), v.contiguous()
    return q, head_major(k), head_major(v)


def head_major(x_BSAD: Tensor) -> Tensor:
    """The same [B,S,A,D], with the rows of each head side by side."""
    return x_BSAD.transpose(1, 2).contiguous().transpose(1, 2)


def best_layout(rows: list[dict[str, Any]], backend: str, attended: int) -> str:
    """The layout of the quickest call, copies counted; `packed` where nothing was measured. attended: rows, to be sure that it is
    of that size.
    """
    copying = next(
        (row["milliseconds"] / 1e3 for row in rows if row.get("case", "").startswith("attention, copying")), 0.0
    )
    found = {
        layout: row["median_seconds"] + (2 * copying if layout == "heads" else 0.0)
        for row in rows
        for layout in LAYOUTS
        if row.get("case") == f"attention {backend}, {layout}" and row.get("rows") == attended
    }
    return min(found, key=lambda layout: found[layout]) if found else LAYOUTS[0]


class HeadMajor:
    """A backend that is given keys and values head by head."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.can, self.name = backend.can, backend.name

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **told: Any) -> Tensor:
        """As the backend's."""
        made: Tensor = self.backend.forward(q, head_major(k), head_major(v), **told)
        return made
