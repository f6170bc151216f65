"""The bars of speed in one run on one card, part by part: `python benchmarks/h3_step.py --parts step,mini,decode --output FILE`.

`step`: the evaluation at 1344x768x209 and 960x544x124, diffusers with regional compile first, then ours with each way of being
faster over a few blocks, then the whole stack with the quickest. `mini`: the step of mini-h3, where queueing is what costs.
`decode`, `encode`: the video VAE. `memory`: peaks of a resident service. `kernels`: every fused kernel against its plain
spelling and a copy's rate. `gaps`: where the card stands still in a step. `tables`, `recompile`, `errors`: as in h3_speed.py.

The result is written after every measurement. With the result file of an earlier run, parts that are done there are left out
and what they gave is kept, so that a run that was cut short goes on where it was. No part begins after `--budget-seconds`.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from benchmarks.h3_references import TINY_AUDIO, filled, video_vae
from benchmarks.h3_speed import Mode, Speed, block_of, channels_last, compared, decode_to_host
from benchmarks.h3_step import (
    DIFFUSERS_BACKENDS,
    Inputs,
    Shape,
    build,
    build_diffusers,
    diffusers_step,
    family_of,
    make_inputs,
    random_weights,
    step_flops,
)
from tools.gaps import gap_table, work_of
from torch import Tensor

from omnireel.acceleration import compile_blocks
from omnireel.acceleration.graphs import Graphs
from omnireel.attention import Place, all_backends, why_unavailable
from omnireel.layers.kernels import why_not_fused
from omnireel.models.minimax_h3 import graphed
from omnireel.models.minimax_h3.audio_autoencoder import AudioAutoencoder, AudioVaeConfig
from omnireel.models.minimax_h3.frame_mover import Direct, Overlapped
from omnireel.models.minimax_h3.modulation_tables import is_table_weight
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, StepTables, TransformerConfig
from omnireel.models.minimax_h3.video_vae import HALF_TOLERANCE, exact_float32
from omnireel.platforms import find_platform

DEFAULT = ("step", "mini", "decode", "encode", "kernels", "gaps", "memory")
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
        self.platform = find_platform(self.kind)
        self.place = Place(platform=self.kind, capability=self.platform.devices()[0].capability)
        self.result["environment"]["attention"] = {
            item.name: why_unavailable(item, self.place) or "available" for item in all_backends()
        }
        self.result["done"] = []
        if arguments.output.exists() and not arguments.again:
            earlier = json.loads(arguments.output.read_text())
            self.result["done"] = earlier.get("done", [])
            self.result["rows"] = [row for row in earlier.get("rows", []) if row.get("part") in self.result["done"]]
            self.result["earlier"] = [*earlier.get("earlier", []), earlier["environment"]]
        self.part = ""

    def run(self) -> None:
        """Runs what was asked for and is not done."""
        parts: dict[str, Callable[[], None]] = {
            "step": self.step_bars, "mini": self.mini, "decode": self.decode, "encode": self.encode, "memory": self.memory,
            "kernels": self.kernels, "gaps": self.gaps, "tables": self.tables, "recompile": self.recompile,
            "errors": self.errors,
        }  # fmt: skip
        unknown = [name for name in self.arguments.parts if name not in parts]
        if unknown:
            raise SystemExit(f"no part is called {', '.join(unknown)}; parts are {', '.join(parts)}")
        for name in self.arguments.parts:
            if name in self.result["done"]:
                continue
            if time.perf_counter() - self.started > self.arguments.budget_s:
                self.result["skipped"].append(name)
                continue
            self.part = name
            begin = time.perf_counter()
            self.result["errors"].pop(name, None)
            failed = len(self.result["errors"])
            with self.guard(name):
                parts[name]()
            self.weights = {}
            self.clean()
            if name not in self.result["errors"]:
                self.result["done"].append(name)
            self.tell(case=f"part {name}", seconds=time.perf_counter() - begin,
                      failures=len(self.result["errors"]) - failed)  # fmt: skip
        self.save()

    def tell(self, **row: Any) -> None:
        """A row, with its part, on the terminal and in the file."""
        super().tell(part=self.part, **row)

    def clean(self) -> None:
        """Leaves nothing of a model behind."""
        gc.collect()
        torch._dynamo.reset()
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    @property
    def backends(self) -> list[str]:
        """Attention backends to compare, the likeliest first; those that have the model's heads."""
        wanted, heads = self.arguments.backends or [FLASH, CUDNN], self.config.attention_head_dim
        there = [
            item.name
            for item in all_backends()
            if why_unavailable(item, self.place) is None and (not item.can.head_dims or heads in item.can.head_dims)
        ]
        return [name for name in wanted if name in there] or [PLAIN_ATTENTION]

    @property
    def modes(self) -> list[Mode]:
        """Ways to run the blocks that can run here."""
        as_written = "plain" if why_not_fused() else "fused"
        first, *others = self.backends
        compiled = Mode(kernels="traceable", is_compiled=True, backend=first)
        return [
            Mode(kernels=as_written, backend=first),
            compiled,
            *(Mode(kernels=as_written, backend=item) for item in others),
        ]

    # The step against diffusers

    def step_bars(self) -> None:
        """Both sizes. Theirs first, while all weights are on the card; then the tables are made and their weights dropped."""
        shapes = [self.shapes[0], self.shapes[-1]]
        theirs = {
            shape: self.theirs(self.config, self.all_weights(), shape, self.arguments.repeats) for shape in shapes
        }
        mode = self.quickest(shapes[0])
        inputs = {shape: make_inputs(self.config, shape, self.kind) for shape in shapes}
        model = self.model(mode)
        steps = {shape: self.step(model, inputs[shape]) for shape in shapes}
        self.drop_tables(model)
        for shape in shapes:
            with self.guard(f"step {shape.name}"):
                begin = time.perf_counter()
                steps[shape]()
                self.device.wait()
                first = time.perf_counter() - begin
                told = self.timed(steps[shape], self.arguments.repeats, warmup=0)
                median, other = told["median_seconds"], theirs[shape]
                flops = step_flops(self.config, inputs[shape].layout.num_rows)
                self.tell(case=f"step {shape.name}", mode=mode.name, rows=inputs[shape].layout.num_rows, first_seconds=first,
                          tflops_per_second=flops / median / 1e12, diffusers_seconds=other,
                          times_diffusers=other and other / median, **told)  # fmt: skip

    def theirs(
        self, config: TransformerConfig, weights: dict[str, Tensor], shape: Shape, repeats: int, *, eager: bool = False
    ) -> float | None:
        """Median seconds of the public implementation, its repeated blocks compiled for this very shape."""
        name = f"diffusers {shape.name} {'eager' if eager else 'regional compile'}"
        median: float | None = None
        with self.guard(name):
            self.clean()
            backend = next((item for item in self.backends if item in DIFFUSERS_BACKENDS), PLAIN_ATTENTION)
            model = build_diffusers(config, self.kind, backend, weights)
            if not eager:
                model.compile_repeated_blocks(backend="inductor" if self.kind == "cuda" else "aot_eager")
            inputs = make_inputs(config, shape, self.kind)
            step = diffusers_step(model, inputs)
            begin = time.perf_counter()
            step()
            self.device.wait()
            first = time.perf_counter() - begin
            told = self.timed(step, repeats, warmup=1 if eager else 0)
            median = told["median_seconds"]
            self.tell(case=name, attention=backend, rows=inputs.layout.num_rows, first_seconds=first, **told)
            del model, step
            self.clean()
        return median

    def quickest(self, shape: Shape) -> Mode:
        """Each way over the first blocks of the stack; gives the one with the least seconds."""
        inputs = make_inputs(self.config, shape, self.kind)
        layers = min(self.arguments.layers, self.config.num_layers)
        found: list[tuple[float, Mode]] = []
        expected: list[Tensor] | None = None
        for mode in self.modes:
            with self.guard(f"mode {mode.name}"):
                self.clean()
                model = self.model(mode, layers)
                step = self.step(model, inputs)
                begin = time.perf_counter()
                outputs = list(step())
                self.device.wait()
                first = time.perf_counter() - begin
                expected = outputs if expected is None else expected
                told = self.timed(step, 2, warmup=0)
                self.tell(case=f"mode {mode.name}", blocks=layers, rows=inputs.layout.num_rows, first_seconds=first,
                          seconds_of_all_blocks=told["median_seconds"] * self.config.num_layers / layers,
                          difference=compared(outputs, expected), **told)  # fmt: skip
                found.append((told["median_seconds"], mode))
                del model, step, outputs
        self.clean()
        return min(found, key=lambda pair: pair[0])[1] if found else self.modes[0]

    def drop_tables(self, model: MiniMaxH3Transformer) -> None:
        """Frees the weights that only tables are made of, as a service does that keeps them on the host."""
        for name in [name for name in self.weights if is_table_weight(name)]:
            owner = model.get_submodule(name.rpartition(".")[0])
            owner._parameters[name.rpartition(".")[2]] = None
        # What is packed is another copy; nothing else reads the parts any more.
        self.weights = {}
        self.clean_memory()

    def clean_memory(self) -> None:
        """As `clean`, but compiled graphs stay."""
        gc.collect()
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    # Where queueing is what costs

    def mini(self) -> None:
        """The step of mini-h3 at a small size, in every way, against diffusers as it is and compiled."""
        file = Path(graphed.__file__).parent / "mini" / "transformer" / "config.json"
        config = TransformerConfig.from_dict(json.loads(file.read_text()))
        weights = random_weights(config, self.kind)
        if self.kind == "cpu":
            weights = {name: tensor.float() for name, tensor in weights.items()}
        repeats = 30 if self.kind == "cuda" else 3
        inputs = make_inputs(config, MINI_SHAPE, self.kind)
        with self.own(config, weights):
            others = {eager: self.theirs(config, weights, MINI_SHAPE, repeats, eager=eager) for eager in (True, False)}
            for mode in self.modes:
                for has_graph in (False, True):
                    name = f"mini {mode.name}{', as a graph' if has_graph else ''}"
                    with self.guard(name):
                        self.clean()
                        model = self.model(mode, config.num_layers, weights)
                        step = self.step(model, inputs)
                        step = partial(self.replayed, cast("Evaluation", step)) if has_graph else step
                        if has_graph:
                            self.graphs = Graphs(partial(self.platform.capture, index=0))
                        told = self.timed(step, repeats, warmup=5)
                        wall = wall_of(step, self.device.wait, repeats)
                        self.tell(case=name, rows=inputs.layout.num_rows, wall_seconds=wall,
                                  times_diffusers=ratio(others[True], told["median_seconds"]),
                                  times_compiled_diffusers=ratio(others[False], told["median_seconds"]), **told)  # fmt: skip

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

    # The video VAE

    def decode(self) -> None:
        """A whole clip of 209 frames to bytes on the host, as it is and compiled."""
        latents = 62 if self.is_released else 7
        height, width = (768, 1344) if self.is_released else (32, 64)
        vae = video_vae(self.arguments, self.device, torch.bfloat16)
        z = torch.randn(1, 24, latents, height // 16, width // 16, device=self.kind)
        frames = np.empty((vae.config.clips.frames_of(latents), height, width, 3), np.uint8)
        tiles = len(vae.decode_plan(latents, height // 16, width // 16).jobs)
        expected: np.ndarray[Any, Any] | None = None
        movers: tuple[Any, ...] = (Direct, Overlapped) if self.kind == "cuda" else (Direct,)
        ways = [(False, 14, Direct), (True, 14, Direct), *((True, batch, movers[-1]) for batch in (14, 4, 28))]
        is_compiled = False
        for compiled, batch, mover in ways:
            if compiled and not is_compiled:
                is_compiled = True
                compiler = "inductor" if self.kind == "cuda" else "aot_eager"
                compile_blocks(vae, ("decoder.transformer_blocks",), name="vae", backend=compiler)
            name = f"decode {'compiled' if compiled else 'eager'}, {batch} tiles at once, {mover.__name__.lower()}"
            with self.guard(name):
                call = partial(decode_to_host, vae, z, frames, batch, mover)
                with self.device.memory() as memory:
                    first = wall_of(call, self.device.wait, 1)
                    seconds = wall_of(call, self.device.wait, 1)
                expected = frames.copy() if expected is None else expected
                levels = int(np.abs(frames.astype(np.int16) - expected).max())
                self.tell(case=name, frames=len(frames), tiles=tiles, first_seconds=first, seconds=seconds,
                          milliseconds_a_tile=1e3 * seconds / tiles, largest_level_difference=levels,
                          memory=memory)  # fmt: skip

    def encode(self) -> None:
        """17 frames in each precision; then a clip of 124 frames in the quickest that keeps within the tolerance."""
        height, width = (768, 1344) if self.is_released else (32, 64)
        vae = video_vae(self.arguments, self.device, torch.float32)
        clip = torch.randn(1, 3, 17, height, width, device=self.kind)
        with exact_float32():
            made: list[Tensor] = []
            seconds = wall_of(lambda: made.append(vae.encode_moments(clip)), self.device.wait, 1)
            expected = made[0].chunk(2, 1)[0]
        self.tell(case="encode float32", seconds_of_17_frames=seconds)
        half, fused = filled_half(vae.encoder), channels_last(filled_half(vae.encoder))
        compiler = "inductor" if self.kind == "cuda" else "aot_eager"
        compile_blocks(fused, ("down_blocks",), name="encoder", backend=compiler)
        ways: dict[str, tuple[Any, int]] = {
            "tf32": (None, 4), "float16": (half, 4), "float16, channels last": (channels_last(filled_half(vae.encoder)), 4),
            "float16, channels last, 14 tiles at once": (channels_last(filled_half(vae.encoder)), 14),
            "float16, channels last, compiled": (fused, 4),
        }  # fmt: skip
        found: list[tuple[float, str]] = []
        for name, (encoder, batch) in ways.items():
            with self.guard(f"encode {name}"), torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
                call = partial(vae.encode_moments, clip, encoder=encoder, tile_batch=batch)
                told = compared([call().chunk(2, 1)[0]], [expected])
                seconds = self.timed(call, 2, warmup=0)["median_seconds"]
                self.tell(case=f"encode {name}", seconds_of_17_frames=seconds, **told)
                if told["relative_difference"] <= HALF_TOLERANCE:
                    found.append((seconds, name))
        if found:
            name = min(found)[1]
            encoder, batch = ways[name]
            whole = torch.randn(1, 3, 124 if self.is_released else 22, height, width, device=self.kind)
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
                told = self.timed(lambda: vae.encode_moments(whole, encoder=encoder, tile_batch=batch), 1, warmup=0)
            self.tell(case="encode a clip", frames=whole.shape[2], way=name, **told)

    # Memory and gaps

    def memory(self) -> None:
        """Peaks of a service with everything resident but the tables' weights, with one DiT and with two."""
        others = [video_vae(self.arguments, self.device, torch.bfloat16), self.audio_vae(), self.conditioner()]
        self.clean_memory()
        self.tell(case="memory of encoders and decoders", gib=self.allocated())
        mode = self.modes[0] if self.kind == "cpu" else Mode(kernels="plain", backend=self.backends[0])
        weights = {name: tensor for name, tensor in random_weights(self.config, self.kind).items()
                   if not is_table_weight(name) or block_of(name) < 0}  # fmt: skip
        inputs = make_inputs(self.config, self.shapes[0], self.kind)
        second: dict[str, Tensor] = {}
        for name in ("one DiT", "two DiTs"):
            with self.guard(f"memory {name}"):
                if name == "two DiTs":
                    second = {key: torch.empty_like(tensor) for key, tensor in weights.items()}
                self.peak(name, mode, weights, inputs)
        del others, second

    def peak(self, name: str, mode: Mode, weights: dict[str, Tensor], inputs: Inputs) -> None:
        """Peak of one step over weights without tables; the tables are drawn, for only their size counts here."""
        model = self.model(mode, weights=self.with_empty_tables(weights))
        step = self.step_without_tables(model, inputs)
        told = self.timed(step, 1, warmup=0)
        self.tell(case=f"memory of a service, {name}", resident_gib=self.allocated(), **told)
        del model, step
        self.clean_memory()

    def with_empty_tables(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """All names, the tables' weights without memory."""
        config = self.config
        with torch.device("meta"):
            shapes = build(config, "cpu", PLAIN_ATTENTION, torch.bfloat16).state_dict()
        return {name: weights.get(name, tensor) for name, tensor in shapes.items()}

    def step_without_tables(self, model: MiniMaxH3Transformer, inputs: Inputs) -> Callable[[], object]:
        """A step whose tables are there already."""
        hidden, kind = self.config.hidden_size, self.kind
        step = self.step(model, inputs, has_tables=False)
        plan = step.keywords["plan"]  # type: ignore[attr-defined]
        count = len(plan.timesteps)
        draw = partial(torch.randn, device=kind, dtype=torch.bfloat16)
        tables = StepTables(
            blocks=tuple(draw(3 * count, 6, hidden) for _ in range(self.config.num_layers)), out=draw(count, 2, hidden)
        )
        return partial(step.func, *step.args, **{**step.keywords, "plan": replace(plan, tables=tables)})  # type: ignore[attr-defined]

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
        mode = self.told_mode()
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

    def told_mode(self) -> Mode:
        """The quickest that a `mode` row tells, else the first."""
        rows = [row for row in self.result["rows"] if str(row.get("case")).startswith("mode ")]
        best = min(rows, key=lambda row: row["median_seconds"], default=None)
        return next((mode for mode in self.modes if best and best["case"] == f"mode {mode.name}"), self.modes[0])


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
