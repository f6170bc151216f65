"""The bars of speed in one run on one card, part by part: `python benchmarks/h3_step.py --parts step,mini,decode --output FILE`.

`check`: every fused kernel and attention backend against its oracle, in a process of its own; what is wrong is not used by the
other parts. `attention`: what the layout of queries, keys and values costs, over time. `step`, `smaller`: the evaluation at 1344x768x209 and at 960x544x124, diffusers with regional compile and then ours.
`mini`: the step of mini-h3, where queueing is what costs. `decode`, `encode`: the video VAE. `kernels`: every fused kernel
against its plain spelling and a copy's rate. `errors`: distance from float32, diffusers' too. `gaps`: where the card stands still
in a step. `memory`: peaks of a resident service. `modes`: every way to run the blocks, over a few of them, and the graphs that
other sizes take once warm. `tables`: as in h3_speed.py, of the first blocks.

The result is written after every measurement. With the result file of an earlier run, parts that are done there are left out
and what they gave is kept, so that a run that was cut short goes on where it was; after an error that takes the card from the
process, the script starts itself again and goes on. No part begins that does not fit into what is left of `--budget-seconds`;
`--dry-run` tells what would run.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import torch
from benchmarks.h3_attention import HeadMajor, attention, best_layout
from benchmarks.h3_card import watched
from benchmarks.h3_check import ATTENTION, KERNEL, checked, is_lost
from benchmarks.h3_references import TINY_AUDIO, filled
from benchmarks.h3_speed import Mode, Speed, block_of, compared
from benchmarks.h3_step import (
    DIFFUSERS_BACKENDS,
    Shape,
    build,
    build_diffusers,
    diffusers_step,
    family_of,
    kernel_table,
    make_inputs,
    random_weights,
    step_flops,
)
from benchmarks.h3_video import decode, encode, vae_of
from tools.gaps import gap_table, work_of
from torch import Tensor

from omnireel.acceleration.compile import num_graphs
from omnireel.acceleration.graphs import Graphs
from omnireel.attention import Place, all_backends, why_unavailable
from omnireel.layers import PLAIN, Kernels
from omnireel.layers.kernels import why_not_fused
from omnireel.models.minimax_h3 import graphed
from omnireel.models.minimax_h3.audio_autoencoder import AudioAutoencoder, AudioVaeConfig
from omnireel.models.minimax_h3.modulation_tables import is_table_weight
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, StepTables, TransformerConfig
from omnireel.platforms import find_platform

DEFAULT = (
    "check",
    "attention",
    "step",
    "smaller",
    "mini",
    "kernels",
    "decode",
    "encode",
    "errors",
    "gaps",
    "memory",
    "modes",
)
EXPECTED_S = {"check": 22, "attention": 18, "step": 115, "smaller": 30, "mini": 12, "kernels": 3, "decode": 55, "encode": 55,
              "errors": 12, "gaps": 12, "memory": 32, "modes": 52, "tables": 10}  # fmt: skip
"""Seconds on one H200 with the released sizes, from what a step took before and 25 s for each graph that is compiled."""
MINI_SHAPE = Shape(width=192, height=128, num_frames=107, text_rows=24)
FLASH, CUDNN, PLAIN_ATTENTION = "FLASH_ATTN", "CUDNN_ATTN", "TORCH_SDPA"
CONDITIONER = {"hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64, "num_key_value_heads": 8,
               "head_dim": 128, "vocab_size": 151936, "num_hidden_layers": 50}  # fmt: skip
"""The text encoder up to the layer that is read; later ones are never built."""
CONDITIONER_EYES = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "out_hidden_size": 5120,
}
TINY_CONDITIONER = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1,
                    "head_dim": 32, "vocab_size": 64, "num_hidden_layers": 2}  # fmt: skip
TINY_EYES = {"depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
             "deepstack_visual_indexes": [0]}  # fmt: skip

Evaluation: TypeAlias = "partial[tuple[Tensor, Tensor]]"


class Parts(Speed):
    """One run of the parts."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.began = arguments.began or time.time()
        self.platform = find_platform(self.kind)
        self.place = Place(platform=self.kind, capability=self.platform.devices()[0].capability)
        self.result["environment"]["attention"] = {
            item.name: why_unavailable(item, self.place) or "available" for item in all_backends()
        }
        self.result |= {"done": [], "checks": {}}
        if arguments.output.exists() and not arguments.again:
            earlier = json.loads(arguments.output.read_text())
            self.result["checks"] = earlier.get("checks", {})
            self.result["done"] = earlier.get("done", [])
            self.result["rows"] = [row for row in earlier.get("rows", []) if row.get("part") in self.result["done"]]
            self.result["earlier"] = [*earlier.get("earlier", []), earlier["environment"]]
            if arguments.began:
                # The run that goes on here: what it measured and what went wrong is part of it.
                self.result |= {name: earlier[name] for name in ("rows", "errors", "skipped")}
        self.part = ""

    def run(self) -> None:
        """Runs what was asked for and is not done."""
        parts: dict[str, Callable[[], None]] = {
            "check": self.check, "attention": partial(attention, self), "step": partial(self.step_bar, 0), "smaller": partial(self.step_bar, -1), "mini": self.mini,
            "decode": partial(decode, self), "encode": partial(encode, self), "memory": self.memory, "kernels": self.kernels,
            "gaps": self.gaps, "errors": self.errors, "modes": self.all_modes, "tables": self.first_tables,
        }  # fmt: skip
        unknown = [name for name in self.arguments.parts if name not in parts]
        if unknown:
            raise SystemExit(f"no part is called {', '.join(unknown)}; parts are {', '.join(parts)}")
        todo = [name for name in self.arguments.parts if name not in self.result["done"] and name not in self.lost]
        if self.arguments.dry_run:
            self.tell_plan(todo)
            return
        for name in todo:
            if self.spent + (EXPECTED_S[name] if self.is_released else 0) > self.arguments.budget_s:
                self.result["skipped"].append(name)
                continue
            self.part = name
            begin = time.perf_counter()
            self.result["errors"].pop(name, None)
            failed = len(self.result["errors"])
            with self.guard(name):
                parts[name]()
            if is_lost(self.kind):
                self.start_again(name)
            self.weights = {}
            self.clean()
            if name not in self.result["errors"]:
                self.result["done"].append(name)
            self.tell(case=f"part {name}", seconds=time.perf_counter() - begin, spent=self.spent,
                      failures=len(self.result["errors"]) - failed)  # fmt: skip
        self.save()

    @property
    def spent(self) -> float:
        """Seconds since the run began, whichever process that was."""
        return time.time() - self.began

    @property
    def lost(self) -> list[str]:
        """Parts that took the card from an earlier process of this run."""
        return list(self.arguments.lost)

    def start_again(self, name: str) -> None:
        """Goes on with the next part in a new process, for in this one no call to the card works any more."""
        self.result["errors"][f"lost in {name}"] = "the card was lost to the process"
        self.save()
        options = [item for item in sys.argv[1:] if item != "--again"]
        kept = ["--began", str(self.began), "--lost", *self.lost, name]
        os.execv(sys.executable, [sys.executable, sys.argv[0], *options, *kept])

    def tell_plan(self, todo: list[str]) -> None:
        """What would run, and when."""
        at = 0
        for name in todo:
            fits = at + EXPECTED_S[name] <= self.arguments.budget_s
            print(f"{at:5d} s  {name:<8} {EXPECTED_S[name]:4d} s{'' if fits else '  does not fit'}")
            at += EXPECTED_S[name] if fits else 0
        print(f"{at:5d} s  end")

    def tell(self, **row: Any) -> None:
        """A row, with its part, on the terminal and in the file."""
        super().tell(part=self.part, **row)

    def clean(self) -> None:
        """Leaves nothing of a model behind."""
        gc.collect()
        torch._dynamo.reset()
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    # What may be used

    def check(self) -> None:
        """Everything against its oracle; parts that come later read what this tells."""
        with tempfile.TemporaryDirectory() as folder:
            self.result["checks"] = checked(self.arguments.config, self.kind, Path(folder))
        wrong = sorted(name for name, row in self.result["checks"].items() if not row["is_right"])
        self.tell(case="check", items=len(self.result["checks"]), wrong=wrong,
                  differences={name: row.get("relative_difference") for name, row in self.result["checks"].items()})  # fmt: skip

    def is_right(self, item: str) -> bool:
        """Whether nothing is known against an item of the check."""
        return bool(self.result["checks"].get(item, {}).get("is_right", True))

    def fused(self) -> Kernels:
        """The Triton kernels, but the plain spelling of those that were found wrong."""
        made = super().fused()
        names = [name for name in vars(type(PLAIN)) if not name.startswith("_") and callable(getattr(PLAIN, name))]
        wrong = [name for name in names if not self.is_right(f"{KERNEL}{name}")]
        if not wrong:
            return made
        chosen = {name: getattr(PLAIN if name in wrong else made, name) for name in names}
        return cast("Kernels", SimpleNamespace(name=f"fused but {', '.join(wrong)}", **chosen))

    @property
    def backends(self) -> list[str]:
        """Attention backends to compare, the likeliest first; those that have the model's heads and are right."""
        wanted, heads = self.arguments.backends or [FLASH, CUDNN], self.config.attention_head_dim
        there = [
            item.name
            for item in all_backends()
            if why_unavailable(item, self.place) is None
            and (not item.can.head_dims or heads in item.can.head_dims)
            and self.is_right(f"{ATTENTION}{item.name} {heads}")
        ]
        return [name for name in wanted if name in there] or [PLAIN_ATTENTION]

    @property
    def modes(self) -> list[Mode]:
        """Ways to run the blocks that can run here, the likeliest first."""
        as_written = "plain" if why_not_fused() or self.kind == "cpu" else "fused"
        first, *others = self.backends
        return [
            Mode(kernels=as_written, backend=first),
            *(Mode(kernels=as_written, backend=item) for item in others),
            Mode(kernels="traceable", is_compiled=True, backend=first),
        ]

    # The step against diffusers

    def measured(self, step: Callable[[], object], repeats: int) -> dict[str, Any]:
        """The first call, which compiles, and then `repeats` of them; memory is the peak of all."""
        with self.device.memory() as memory:
            first = wall_of(step, self.device.wait, 1)
            with watched(self.kind) as card:
                seconds = [self.device.seconds(step) for _ in range(repeats)]
        return {
            "first_seconds": first,
            "median_seconds": statistics.median(seconds),
            "seconds": seconds,
            "memory": memory,
            "card": card,
        }

    def wall_of(self, call: Callable[[], object], times: int) -> float:
        """As the function, of this device."""
        return wall_of(call, self.device.wait, times)

    def filled_half(self, encoder: Any) -> Any:
        """As the function."""
        return filled_half(encoder)

    def rows_of(self, shape: Shape) -> int:
        """Rows that are attended."""
        return int(make_inputs(self.config, shape, "cpu").layout.num_rows)

    def step_bar(self, index: int) -> None:
        """One size, theirs and then ours on the same weights. The tables of ours are there before the step, as in a service."""
        shape = self.shapes[index]
        is_measured = False
        # A longer step needs fewer.
        repeats = self.arguments.repeats + (0 if index == 0 else 2)
        other = self.theirs(self.config, self.all_weights(), shape, repeats)
        for mode in self.modes[:-1]:
            with self.guard(f"step {shape.name} {mode.name}"):
                inputs = make_inputs(self.config, shape, self.kind)
                layout = best_layout(self.result["rows"], mode.backend, self.rows_of(self.shapes[0]))
                step = self.step(self.laid_out(mode, layout), inputs)
                told = self.measured(step, repeats)
                if index == 0:
                    told["families"] = self.families(step)
                median, flops = told["median_seconds"], step_flops(self.config, inputs.layout.num_rows)
                self.tell(case=f"step {shape.name}", mode=mode.name, layout=layout, rows=inputs.layout.num_rows,
                          tflops_per_second=flops / median / 1e12, diffusers_seconds=other,
                          times_diffusers=ratio(other, median), **told)  # fmt: skip
                is_measured = True
            self.clean()
            # The next one is for where the first cannot.
            if is_measured:
                break

    def laid_out(self, mode: Mode, layout: str, layers: int | None = None) -> Any:
        """The model with queries, keys and values as the part `attention` has them."""
        model = self.model(replace(mode, is_packed=layout != "dense"), layers)
        if layout == "heads":
            for block in model.blocks:
                block.attn.attend.backend = HeadMajor(block.attn.attend.backend)
        return model

    def families(self, step: Callable[[], tuple[Tensor, Tensor]]) -> dict[str, Any] | None:
        """Seconds of each family of kernels in a whole step, and of the largest kernels."""
        if self.kind != "cuda":
            return None
        table = kernel_table(step, self.device)
        kernels = [(name, told) for row in table for name, told in row["kernels"].items()]
        most = sorted(kernels, key=lambda item: -item[1]["seconds"])[:16]
        return {"seconds": {row["family"]: row["seconds"] for row in table}, "kernels": dict(most)}

    def theirs(
        self, config: TransformerConfig, weights: dict[str, Tensor], shape: Shape, repeats: int, *, eager: bool = False
    ) -> float | None:
        """Median seconds of the public implementation, its repeated blocks compiled for this very shape."""
        name = f"diffusers {shape.name} {'eager' if eager else 'regional compile'}"
        median: float | None = None
        with self.guard(name):
            self.clean()
            step, backend = self.their_step(config, weights, shape, eager=eager)
            told = self.measured(step, repeats)
            median = told["median_seconds"]
            self.tell(case=name, attention=backend, **told)
            del step
        self.clean()
        return median

    def their_step(
        self, config: TransformerConfig, weights: dict[str, Tensor], shape: Shape, *, eager: bool
    ) -> tuple[Callable[[], object], str]:
        """The public implementation on the same tensors, and its attention backend."""
        backend = next((item for item in self.backends if item in DIFFUSERS_BACKENDS), PLAIN_ATTENTION)
        model = build_diffusers(config, self.kind, backend, weights)
        if not eager:
            model.compile_repeated_blocks(backend="inductor" if self.kind == "cuda" else "aot_eager")
        return diffusers_step(model, make_inputs(config, shape, self.kind)), backend

    def all_modes(self) -> None:
        """Each way over the first blocks of the stack; compiled, other sizes too, which must find their graph."""
        inputs = make_inputs(self.config, self.shapes[0], self.kind)
        layers = min(self.arguments.layers, self.config.num_layers)
        expected: list[Tensor] | None = None
        first = self.modes[0]
        ways = [(f"{first.name}, {layout}", first, layout) for layout in ("packed", "dense", "heads")]
        for name, mode, layout in [*ways, *((mode.name, mode, "packed") for mode in self.modes[1:])]:
            with self.guard(f"mode {name}"):
                self.clean()
                model = self.laid_out(mode, layout, layers)
                step = self.step(model, inputs)
                outputs = list(step())
                expected = outputs if expected is None else expected
                told = self.measured(step, 2)
                self.tell(case=f"mode {name}", blocks=layers, rows=inputs.layout.num_rows,
                          seconds_of_all_blocks=told["median_seconds"] * self.config.num_layers / layers,
                          difference=compared(outputs, expected), **told)  # fmt: skip
                if mode.is_compiled:
                    self.other_sizes(model)
                del model, step, outputs
        self.clean()

    def other_sizes(self, model: MiniMaxH3Transformer) -> None:
        """How many graphs other sizes and prompts take, once one size is warm."""
        for shape in (*reversed(self.shapes[1:]), Shape(width=512, height=512, num_frames=39, text_rows=77)):
            before, step = num_graphs(), self.step(model, make_inputs(self.config, shape, self.kind))
            seconds = wall_of(step, self.device.wait, 1)
            self.tell(case=f"recompile {shape.name}", graphs=num_graphs() - before, seconds=seconds)

    def clean_memory(self) -> None:
        """As `clean`, but compiled graphs stay."""
        gc.collect()
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    def errors(self) -> None:
        """Distance of each way, and of the public implementation, from float32 over the first blocks."""
        shape, layers = self.shapes[1], min(2, self.config.num_layers)
        config = replace(self.config, num_layers=layers)
        weights = {name: tensor for name, tensor in self.all_weights().items() if block_of(name) < layers}
        inputs = make_inputs(config, shape, self.kind)
        exact_weights = {name: tensor.float() for name, tensor in weights.items()}
        exact = list(self.step(build(config, self.kind, PLAIN_ATTENTION, torch.float32, exact_weights), inputs)())
        del exact_weights
        with self.guard("error diffusers"):
            step, backend = self.their_step(config, weights, shape, eager=True)
            outputs = cast("tuple[Tensor, Tensor]", step())
            self.tell(
                case="error against float32, diffusers",
                attention=backend,
                blocks=layers,
                **compared(list(outputs), exact),
            )
            del step, outputs
        # How far apart compiled ones are is told by `modes`; here compiling would take most of the time.
        for mode in self.modes[:-1]:
            with self.guard(f"error {mode.name}"):
                outputs = self.step(self.model(mode, layers, weights), inputs)()
                self.tell(case=f"error against float32, {mode.name}", blocks=layers, **compared(list(outputs), exact))

    def first_tables(self) -> None:
        """Modulation tables of the first blocks, of weights on the card and on the host."""
        config = replace(self.config, num_layers=min(self.arguments.layers, self.config.num_layers))
        weights = {name: tensor for name, tensor in self.all_weights().items() if block_of(name) < config.num_layers}
        with self.own(config, weights):
            self.tables()

    # Where queueing is what costs

    def mini(self) -> None:
        """The step of mini-h3 at a small size, in every way, against diffusers as it is and compiled."""
        file = Path(graphed.__file__).parent / "mini" / "transformer" / "config.json"
        config = TransformerConfig.from_dict(json.loads(file.read_text()))
        weights = random_weights(config, self.kind)
        if self.kind == "cpu":
            weights = {name: tensor.float() for name, tensor in weights.items()}
        with self.own(config, weights):
            if self.kind == "cpu":
                self.mini_beside()
                return
            others = {eager: self.theirs(config, weights, MINI_SHAPE, 20, eager=eager) for eager in (True, False)}
            for mode in self.modes:
                # What is compiled is told by another part: here the seconds that it takes would be the largest of all.
                for has_graph in () if mode.is_compiled else (False, True):
                    self.mini_mode(mode, has_graph, others)

    def mini_mode(self, mode: Mode, has_graph: bool, others: dict[bool, float | None]) -> None:
        """One way; by the card's clock and by that on the wall."""
        name = f"mini {mode.name}{', as a graph' if has_graph else ''}"
        with self.guard(name):
            self.clean()
            step = self.step(self.model(mode), make_inputs(self.config, MINI_SHAPE, self.kind))
            if has_graph:
                self.graphs = Graphs(partial(self.platform.capture, index=0))
                step = partial(self.replayed, cast("Evaluation", step))
            for _ in range(4):
                step()
            told: dict[str, Any] = self.graph_against_eager(step) if has_graph else {}
            told |= self.measured(step, 20)
            wall = wall_of(step, self.device.wait, 20)
            self.tell(case=name, wall_seconds=wall, times_diffusers=ratio(others[True], told["median_seconds"]),
                      times_compiled_diffusers=ratio(others[False], told["median_seconds"]), **told)  # fmt: skip

    def graph_against_eager(self, replayed: Any) -> dict[str, Any]:
        """Whether a replayed graph gives the bits of the step as it is, on the inputs that it was recorded with and on others."""
        step = replayed.args[0]
        differences = []
        for scale in (1.0, 0.5):
            other = partial(step.func, *(part * scale for part in step.args), **step.keywords)
            differences.append(compared(list(self.replayed(other)), list(other())))
        return {
            "is_recorded": bool(self.graphs._kept),
            "graph_equals_eager": all(row["largest_difference"] == 0 for row in differences),
            "graph_relative_difference": max(row["relative_difference"] for row in differences),
        }

    def mini_beside(self) -> None:
        """Ours and theirs by turns, for on a processor others may be at work."""
        mode = self.modes[0]
        ours = self.step(self.model(mode), make_inputs(self.config, MINI_SHAPE, self.kind))
        theirs, _ = self.their_step(self.config, self.weights, MINI_SHAPE, eager=True)
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        for turn in range(self.arguments.rounds + 1):
            for name, step in (("ours", ours), ("theirs", theirs)):
                took = self.device.seconds(step)
                seconds[name] += [took] if turn else []
        median = {name: statistics.median(values) for name, values in seconds.items()}
        self.tell(case=f"mini {mode.name}", median_seconds=median["ours"], diffusers_seconds=median["theirs"],
                  times_diffusers=median["theirs"] / median["ours"], seconds=seconds)  # fmt: skip

    @contextmanager
    def own(self, config: TransformerConfig, weights: dict[str, Tensor]) -> Iterator[None]:
        """Another model than that of the run."""
        kept = self.config, self.weights
        self.config, self.weights = config, weights
        try:
            yield
        finally:
            self.config, self.weights = kept

    def replayed(self, step: Evaluation) -> tuple[Tensor, Tensor]:
        """A step as the service makes it with graphs."""
        evaluate = step.func
        transformer: MiniMaxH3Transformer = evaluate.__self__  # type: ignore[attr-defined]
        return graphed._graphed(self.graphs, transformer, *step.args, **step.keywords)

    # Memory and gaps

    def memory(self) -> None:
        """Peaks of a service with everything resident but the tables' weights, with one DiT and with two. The first blocks of a step
        need what every block needs; the weights of the others are there and rest.
        """
        vae, audio_vae = vae_of(self, torch.bfloat16), self.audio_vae()
        conditioner: Any = None
        with self.guard("memory of the text encoder"):
            conditioner = self.conditioner()
        self.clean_memory()
        self.tell(
            case="memory of encoders and decoders", gib=self.allocated(), has_text_encoder=conditioner is not None
        )
        weights = {name: tensor for name, tensor in random_weights(self.config, self.kind).items()
                   if not is_table_weight(name) or block_of(name) < 0}  # fmt: skip
        words = torch.randint(8, (1, 512 if self.is_released else 8), device=self.kind)
        latents, size = (12, (48, 84)) if self.is_released else (7, (2, 4))
        z = torch.randn(1, 24, latents, *size, device=self.kind)
        second: dict[str, Tensor] = {}
        for count in (1, 2):
            if count == 2:
                second = {key: torch.empty_like(tensor) for key, tensor in weights.items()}
            self.clean_memory()
            resident, peaks = self.allocated(), {}
            calls: dict[str, Callable[[], Callable[[], object]]] = {
                "encode": lambda: lambda: conditioner(input_ids=words),
                "step": lambda: self.step_of_first_blocks(weights),
                "decode": lambda: lambda: list(vae.decode_clips(z, tile_batch=14)),
            }
            for name, made in calls.items():
                with self.guard(f"memory of {name}, {count} DiT"):
                    peaks[name] = self.measured(made(), 1)["memory"]
                self.clean_memory()
            self.tell(case=f"memory of a service, {count} DiT", resident_gib=resident, peaks=peaks,
                      peak_gib=max((peak.get("allocated_gib", 0.0) for peak in peaks.values()), default=None))  # fmt: skip
        del audio_vae, second

    def step_of_first_blocks(self, weights: dict[str, Tensor]) -> Callable[[], object]:
        """Of the largest size; its tables are drawn, for only their size counts here."""
        config = replace(self.config, num_layers=min(2, self.config.num_layers))
        with torch.device("meta"):
            empty = build(config, "cpu", PLAIN_ATTENTION, torch.bfloat16).state_dict()
        model = build(
            config,
            self.kind,
            self.backends[0],
            torch.bfloat16,
            {name: weights.get(name, there) for name, there in empty.items()},
        )
        model.kernels = PLAIN if self.modes[0].kernels == "plain" else self.fused()
        step = cast("Evaluation", self.step(model, make_inputs(config, self.shapes[0], self.kind), has_tables=False))
        plan, hidden = step.keywords["plan"], config.hidden_size
        count = len(plan.timesteps)
        draw = partial(torch.randn, device=self.kind, dtype=torch.bfloat16)
        tables = StepTables(
            blocks=tuple(draw(3 * count, 6, hidden) for _ in range(config.num_layers)), out=draw(count, 2, hidden)
        )
        return partial(step.func, *step.args, **{**step.keywords, "plan": replace(plan, tables=tables)})

    def allocated(self) -> float | None:
        """GiB in tensors on the card."""
        return torch.cuda.memory_allocated() / 2**30 if self.kind == "cuda" else None

    def audio_vae(self) -> Any:
        """The sound VAE in float32."""
        config = AudioVaeConfig() if self.is_released else TINY_AUDIO
        with torch.device("meta"):
            module = AudioAutoencoder(config)
        return filled(module, self.kind, torch.float32)

    def conditioner(self) -> Any:
        """The resident part of the text encoder: words, layers up to the one that is read, and the eyes."""
        from transformers import Qwen3VLConfig, Qwen3VLModel

        text, vision = (CONDITIONER, CONDITIONER_EYES) if self.is_released else (TINY_CONDITIONER, TINY_EYES)
        with torch.device("meta"):
            module = Qwen3VLModel(Qwen3VLConfig(text_config=text, vision_config=vision))
        return module.to(torch.bfloat16).to_empty(device=self.kind)

    def gaps(self) -> None:
        """Families of kernels, and the time in which nothing ran, over the first blocks with the quickest way."""
        layers = min(self.arguments.layers, self.config.num_layers)
        inputs = make_inputs(self.config, self.shapes[0], self.kind)
        mode = self.modes[0]
        step = self.step(self.model(mode, layers), inputs)
        step()
        step()
        seconds = self.timed(step, 2, warmup=0)["median_seconds"]
        if self.kind != "cuda":
            self.tell(case="gaps", skipped="no card", step_seconds=seconds)
            return
        waits = waits_of(step)
        work = work_of(traced(step, self.device.wait))
        table = gap_table(work)
        families: dict[str, float] = {}
        for item in work:
            families[family_of(item.name)] = families.get(family_of(item.name), 0.0) + (item.stop - item.start) / 1e6
        self.tell(case="gaps", mode=mode.name, blocks=layers, step_seconds=seconds, families=families, waits=waits,
                  **{**asdict(table), "gaps": [asdict(gap) for gap in table.gaps[:10]]})  # fmt: skip


def traced(call: Callable[[], object], wait: Callable[[], None]) -> dict[str, Any]:
    """The Chrome trace of one call on a card."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        wait()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        made: dict[str, Any] = json.loads(file.read_text())
        return made


def waits_of(call: Callable[[], object]) -> list[str]:
    """Where a call waits for the card, in torch's words; empty when it never does."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sorted({f"{item.filename}:{item.lineno}: {item.message}"[-300:] for item in caught})


def filled_half(encoder: Any) -> Any:
    """A copy in half precision."""
    return copy.deepcopy(encoder).half()


def wall_of(call: Callable[[], object], wait: Callable[[], None], times: int) -> float:
    """Seconds a call by the clock on the wall, waiting once at the end."""
    wait()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    wait()
    return (time.perf_counter() - begin) / times


def ratio(other: float | None, own: float) -> float | None:
    """How many times as long the other takes."""
    return None if other is None else other / own


__all__ = ["DEFAULT", "Parts"]
