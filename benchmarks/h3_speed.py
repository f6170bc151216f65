"""What each way of being faster gives on one card, and whether it gives the same values: random weights of the released sizes.

    PYTHONPATH=src:. python benchmarks/h3_speed.py --output result.json

Sections, most telling first, each by itself: what fails leaves its error in the result and the next one runs. `kernels`: every
Triton kernel against its plain spelling at full size, and its bytes a second against a copy's. `tables`: all modulation tables
of a schedule of 49 steps, their bits, and the memory that they free. `steps`: the evaluation as written, fused and compiled,
over the first blocks of the stack. `decode`, `encode`: the video VAE. `full`: whole evaluations with everything on, and peak
memory. `recompile`: graphs made for other sizes once warm. `errors`: distance from float32. `profile`: families of kernels and
the time between them. The result is written after every measurement; sections that would begin after `--budget-s` are left
out. `--config tiny` runs anywhere, as a test of this script.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.h3_references import video_vae
from benchmarks.h3_step import (
    RELEASED,
    SHAPES,
    TINY,
    Device,
    Inputs,
    Shape,
    build,
    kernel_table,
    make_inputs,
    random_weights,
    step_flops,
)
from torch import Tensor, nn

from omnireel.acceleration import compile_blocks
from omnireel.acceleration.compile import num_graphs
from omnireel.layers import PLAIN, Kernels, RMSNorm, RotaryTable, TableRows
from omnireel.layers.kernels import TRACEABLE, fused, why_not_fused
from omnireel.models.minimax_h3.frame_mover import Direct, Overlapped
from omnireel.models.minimax_h3.modulation_tables import ModulationTables, is_table_weight
from omnireel.models.minimax_h3.packing import Target, patchify, unpatchify
from omnireel.models.minimax_h3.schedule import FlowSchedule
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer
from omnireel.models.minimax_h3.video_vae import exact_float32

FLOW_SHIFTS = (12.0, 3.0)


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One way to run the blocks."""

    kernels: str
    is_compiled: bool = False
    backend: str = "CUDNN_ATTN"
    is_packed: bool = True
    """Whether fused kernels get queries, keys and values of one product."""

    @property
    def name(self) -> str:
        return f"{'compiled' if self.is_compiled else self.kernels} {self.backend}"


class Speed:
    """One run: the weights, the clock and the results so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.started = time.perf_counter()
        self.kind: str = arguments.device
        self.device = Device(kind=self.kind)
        self.is_released = arguments.config == "released"
        self.config = RELEASED if self.is_released else TINY
        self.shapes = SHAPES[arguments.config]
        self.result: dict[str, Any] = {"environment": environment(arguments), "rows": [], "errors": {}, "skipped": []}
        self.weights: dict[str, Tensor] = {}

    def run(self) -> None:
        sections: dict[str, Callable[[], None]] = {
            "kernels": self.kernels, "tables": self.tables, "steps": self.steps, "decode": self.decode,
            "full": self.full, "encode": self.encode, "recompile": self.recompile, "profile": self.profile,
            "errors": self.errors,
        }  # fmt: skip
        for name, section in sections.items():
            if self.arguments.only and name not in self.arguments.only:
                continue
            if time.perf_counter() - self.started > self.arguments.budget_s:
                self.result["skipped"].append(name)
                continue
            self.tell(section=name, begins=round(time.perf_counter() - self.started, 2))
            with self.guard(name):
                section()
            if self.kind == "cuda":
                torch.cuda.empty_cache()
        self.save()

    @contextlib.contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """Whatever goes wrong inside is part of the result and ends nothing but this."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a measurement that fails must not cost the others
            self.result["errors"][name] = traceback.format_exc(limit=6)[-2000:]
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            self.save()

    def tell(self, **row: Any) -> None:
        self.result["rows"].append(row)
        print(json.dumps(row), flush=True)
        self.save()

    def save(self) -> None:
        self.result["total_seconds"] = time.perf_counter() - self.started
        self.arguments.output.write_text(json.dumps(self.result, indent=1) + "\n")

    def timed(self, call: Callable[[], object], times: int, *, warmup: int = 1) -> dict[str, Any]:
        with self.device.memory() as memory:
            for _ in range(warmup):
                call()
            self.device.wait()
            seconds = [self.device.seconds(call) for _ in range(times)]
        return {"median_seconds": statistics.median(seconds), "seconds": seconds, "memory": memory}

    def copy_rate(self) -> float:
        """Bytes read and written a second by a copy on the device."""
        source = torch.empty(2**31 if self.is_released else 2**20, dtype=torch.uint8, device=self.kind)
        target = torch.empty_like(source)
        row = self.timed(lambda: target.copy_(source), 10, warmup=3)
        rate = 2 * source.numel() / float(row["median_seconds"])
        self.tell(case="copy", terabytes_per_second=rate / 1e12)
        return rate

    # Kernels

    def kernels(self) -> None:
        if self.kind != "cuda" or why_not_fused():
            self.tell(case="kernels", skipped=why_not_fused() or "no card")
            return
        rate = self.copy_rate()
        inputs = make_inputs(self.config, self.shapes[0], self.kind)
        cases = kernel_cases(self.config, inputs, self.kind)
        for name, case in cases.items():
            with self.guard(f"kernel {name}"):
                ours, plain = case.run(fused()), case.run(PLAIN)
                told = compared(ours, plain)
                del ours, plain
                eager = self.timed(lambda case=case: case.run(PLAIN), 5)["median_seconds"]  # type: ignore[misc]
                seconds = self.timed(lambda case=case: case.run(fused()), 10, warmup=2)["median_seconds"]  # type: ignore[misc]
                self.tell(
                    case=f"kernel {name}", milliseconds=1e3 * seconds, plain_milliseconds=1e3 * eager,
                    terabytes_per_second=case.num_bytes / seconds / 1e12, share_of_copy=case.num_bytes / seconds / rate,
                    **told,
                )  # fmt: skip
        del cases
        with self.guard("kernel patches"):
            self.patches(inputs, rate)

    def patches(self, inputs: Inputs, rate: float) -> None:
        shape = self.shapes[0]
        frames = len(inputs.layout.video_indices) // ((shape.height // 32) * (shape.width // 32))
        latents = torch.randn(1, 24, frames, shape.height // 16, shape.width // 16, device=self.kind)
        target = Target(
            latent_frames=frames, latent_height=shape.height // 16, latent_width=shape.width // 16, sound_latents=1
        )
        kernels: Any = fused()
        rows = patchify(latents, (1, 2, 2))
        equal = torch.equal(kernels.patchify(latents[0], (1, 2, 2)), rows)
        back = torch.equal(
            kernels.unpatchify(rows, latents.shape[1:], (1, 2, 2)), unpatchify(rows, target, (1, 2, 2))[0]
        )
        seconds = self.timed(lambda: kernels.patchify(latents[0], (1, 2, 2)), 20, warmup=3)["median_seconds"]
        self.tell(case="kernel patchify", is_equal=equal, inverse_is_equal=back, milliseconds=1e3 * seconds,
                  share_of_copy=2 * latents.nbytes / seconds / rate)  # fmt: skip

    # The denoiser

    def model(self, mode: Mode, num_layers: int | None = None, weights: dict[str, Tensor] | None = None) -> Any:
        """The DiT, or its first blocks, around the weights of this run."""
        weights = self.all_weights() if weights is None else weights
        config = replace(self.config, num_layers=num_layers or self.config.num_layers)
        kept = {name: tensor for name, tensor in weights.items() if block_of(name) < config.num_layers}
        backend = mode.backend if self.kind == "cuda" else "TORCH_SDPA"
        made = build(config, self.kind, backend, torch.bfloat16, kept)
        made.kernels = {"plain": lambda: PLAIN, "fused": self.fused, "traceable": lambda: TRACEABLE}[mode.kernels]()
        if mode.kernels == "fused" and mode.is_packed:
            made.pack_projections()
        if mode.is_compiled:
            torch._dynamo.reset()
            compiler = "inductor" if self.kind == "cuda" else "aot_eager"
            compile_blocks(made, ("transformer_blocks",), name="transformer", backend=compiler)
        return made

    def fused(self) -> Kernels:
        """The Triton kernels."""
        return fused()

    def all_weights(self) -> dict[str, Tensor]:
        if not self.weights:
            self.weights = random_weights(self.config, self.kind)
        return self.weights

    def schedule(self) -> list[Tensor]:
        """Timesteps of the 49 evaluations of a clip without conditions."""
        video, audio = (FlowSchedule.build(50, shift) for shift in FLOW_SHIFTS)
        pairs = zip(video.timesteps, audio.timesteps, strict=True)
        return [torch.unique(torch.stack([one, two])) for one, two in pairs]

    def tables(self) -> None:
        model = self.model(Mode(kernels="plain"))
        steps = self.schedule()
        device_tables = ModulationTables(model)
        begin = time.perf_counter()
        device_tables.of(steps)
        self.device.wait()
        self.tell(case="tables from weights on the device", seconds=time.perf_counter() - begin)
        del device_tables
        chosen = (0, 1, len(steps) - 1)
        in_place = [self.in_place(model, steps[index]) for index in chosen]
        before = torch.cuda.memory_allocated() / 2**30 if self.kind == "cuda" else None
        begin = time.perf_counter()
        self.to_host(model)
        after = torch.cuda.memory_allocated() / 2**30 if self.kind == "cuda" else None
        self.tell(
            case="table weights to pinned host memory",
            seconds=time.perf_counter() - begin,
            before_gib=before,
            after_gib=after,
        )
        tables = ModulationTables(model)
        begin = time.perf_counter()
        made = tables.of(steps)
        self.device.wait()
        seconds = time.perf_counter() - begin
        equal = [
            all(torch.equal(a, b) for a, b in zip((*made[index].blocks, made[index].out), expected, strict=True))
            for index, expected in zip(chosen, in_place, strict=True)
        ]
        begin = time.perf_counter()
        tables.of(steps)
        self.device.wait()
        self.tell(case="tables from the host", seconds=seconds, again_seconds=time.perf_counter() - begin,
                  gib=sum(step.size_bytes for step in made) / 2**30, steps=len(steps), is_bit_equal=equal)  # fmt: skip

    def in_place(self, model: MiniMaxH3Transformer, step: Tensor) -> list[Tensor]:
        time_ME = model.time_embedding(step.to(self.kind))
        return [*(block.adaln_proj(time_ME) for block in model.blocks), model.norm_out.table(time_ME)]

    def to_host(self, model: MiniMaxH3Transformer) -> None:
        """Table weights leave the device for good: also those of the models that are built after this."""
        for name in [name for name in self.weights if is_table_weight(name)]:
            there = self.weights[name]
            host = torch.empty(there.shape, dtype=there.dtype, pin_memory=self.kind == "cuda")
            self.weights[name] = host.copy_(there)
            owner = model.get_submodule(name.rpartition(".")[0])
            owner._parameters[name.rpartition(".")[2]] = nn.Parameter(self.weights[name], requires_grad=False)
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    def step(
        self, model: MiniMaxH3Transformer, inputs: Inputs, *, has_tables: bool = True
    ) -> Callable[[], tuple[Tensor, Tensor]]:
        """One evaluation of `inputs`."""
        layout, text = inputs.layout, model.refine_text(inputs.text)
        plan = model.plan_step(
            inputs.timestep.cpu(), inputs.timestep_indices.cpu(), layout.token_tags, num_rows=layout.num_rows
        )
        if has_tables:
            plan = replace(plan, tables=ModulationTables(model).of([inputs.timestep.cpu()])[0])
        places = layout.video_indices, layout.audio_indices, layout.text_indices
        return partial(
            model.evaluate, inputs.video, inputs.audio, text, plan=plan,
            rotary=model.rotary(layout.position_ids.to(self.kind), text.dtype),
            indices=(places[0].to(self.kind), places[1].to(self.kind), places[2].to(self.kind)),
        )  # fmt: skip

    @property
    def modes(self) -> list[Mode]:
        ways = [("plain", False), ("fused", False), ("traceable", True)]
        return [Mode(kernels=kernels, is_compiled=compiled, backend=backend)
                for backend in self.arguments.backends for kernels, compiled in ways]  # fmt: skip

    def steps(self) -> None:
        inputs = make_inputs(self.config, self.shapes[0], self.kind)
        layers = min(self.arguments.layers, self.config.num_layers)
        expected: tuple[Tensor, Tensor] | None = None
        for mode in self.modes:
            with self.guard(f"step {mode.name}"):
                model = self.model(mode, layers)
                step = self.step(model, inputs)
                begin = time.perf_counter()
                outputs = step()
                self.device.wait()
                first = time.perf_counter() - begin
                expected = outputs if expected is None else expected
                told = self.timed(step, self.arguments.repeats, warmup=0)
                flops = step_flops(replace(self.config, num_layers=layers), inputs.layout.num_rows)
                self.tell(case=f"step {mode.name}", blocks=layers, rows=inputs.layout.num_rows, first_seconds=first,
                          seconds_of_50_blocks=told["median_seconds"] * 50 / layers,
                          tflops_per_second=flops / told["median_seconds"] / 1e12,
                          difference=compared(list(outputs), list(expected)), **told)  # fmt: skip
                del model, step, outputs

    def best_mode(self) -> Mode:
        """The quickest that was measured, else the first."""
        steps = [row for row in self.result["rows"] if str(row.get("case")).startswith("step ")]
        quickest = min(steps, key=lambda row: row["median_seconds"], default=None)
        return next(
            (mode for mode in self.modes if quickest and quickest["case"] == f"step {mode.name}"), self.modes[0]
        )

    def full(self) -> None:
        """Whole evaluations with what was quickest, the table weights on the host."""
        mode = self.best_mode()
        model = self.model(mode)
        if not any(tensor.device.type == "cpu" for tensor in self.weights.values()):
            self.to_host(model)
        # What is packed is another copy; nothing else reads the parts any more.
        self.weights = {}
        if self.kind == "cuda":
            torch.cuda.empty_cache()
        for shape in self.shapes:
            with self.guard(f"full {shape.name}"):
                inputs = make_inputs(self.config, shape, self.kind)
                told = self.timed(self.step(model, inputs), 1)
                self.tell(case=f"full step {shape.name}", mode=mode.name, rows=inputs.layout.num_rows,
                          tflops_per_second=step_flops(self.config, inputs.layout.num_rows) / told["median_seconds"] / 1e12,
                          **told)  # fmt: skip

    def recompile(self) -> None:
        """Every other size after the first: how many graphs it takes, and whether it is quicker for having been seen."""
        model = self.model(Mode(kernels="traceable", is_compiled=True), min(2, self.config.num_layers))
        for shape in (*reversed(self.shapes), Shape(width=512, height=512, num_frames=39, text_rows=77)):
            inputs = make_inputs(self.config, shape, self.kind)
            before, begin = num_graphs(), time.perf_counter()
            self.step(model, inputs)()
            self.device.wait()
            self.tell(case=f"recompile {shape.name}", graphs=num_graphs() - before, seconds=time.perf_counter() - begin)

    def errors(self) -> None:
        """Distance of each mode from float32 over the first blocks."""
        layers = min(2, self.config.num_layers)
        inputs = make_inputs(self.config, self.shapes[1], self.kind)
        config = replace(self.config, num_layers=layers)
        weights = {name: tensor.to(self.kind) for name, tensor in self.all_weights().items() if block_of(name) < layers}
        exact_weights = {name: tensor.float() for name, tensor in weights.items()}
        exact = self.step(build(config, self.kind, "TORCH_SDPA", torch.float32, exact_weights), inputs)()
        del exact_weights
        for mode in self.modes:
            with self.guard(f"error {mode.name}"):
                outputs = self.step(self.model(mode, layers, weights), inputs)()
                self.tell(case=f"error against float32, {mode.name}", blocks=layers,
                          **compared(list(outputs), [value.float() for value in exact]))  # fmt: skip

    def profile(self) -> None:
        layers = min(self.arguments.layers, self.config.num_layers)
        inputs = make_inputs(self.config, self.shapes[0], self.kind)
        mode = self.best_mode()
        step = self.step(self.model(mode, layers), inputs)
        step()
        seconds = self.timed(step, 2, warmup=0)["median_seconds"]
        families = kernel_table(step, self.device)
        busy = sum(row["seconds"] for row in families)
        self.tell(case="profile", mode=mode.name, blocks=layers, step_seconds=seconds, busy_seconds=busy,
                  idle_share=1 - busy / seconds if self.kind == "cuda" else None,
                  families=[{key: row[key] for key in ("family", "seconds", "calls")} for row in families])  # fmt: skip

    # The video VAE

    def decode(self) -> None:
        """A clip to bytes on the host, as the service does it."""
        latents = 12 if self.is_released else 7
        height, width = (768, 1344) if self.is_released else (32, 64)
        vae = video_vae(self.arguments, self.device, torch.bfloat16)
        z = torch.randn(1, 24, latents, height // 16, width // 16, device=self.kind)
        frames = np.empty((vae.config.clips.frames_of(latents), height, width, 3), np.uint8)
        plan = vae.decode_plan(latents, height // 16, width // 16)
        expected: np.ndarray[Any, Any] | None = None
        for is_compiled in (False, True):
            if is_compiled:
                torch._dynamo.reset()
                compiler = "inductor" if self.kind == "cuda" else "aot_eager"
                compile_blocks(vae, ("decoder.transformer_blocks",), name="vae", backend=compiler)
            ways: list[tuple[int, Any]] = [(1, Direct), (4, Direct)]
            if self.kind == "cuda":
                ways += [(14, Direct), (4, Overlapped)] if is_compiled else []
            for batch, mover in ways[1:] if is_compiled else ways:
                name = (
                    f"decode {'compiled' if is_compiled else 'eager'}, {batch} tiles at once, {mover.__name__.lower()}"
                )
                with self.guard(name):
                    call = partial(decode_to_host, vae, z, frames, batch, mover)
                    begin = time.perf_counter()
                    call()
                    first = time.perf_counter() - begin
                    seconds = wall(call)
                    expected = frames.copy() if expected is None else expected
                    levels = int(np.abs(frames.astype(np.int16) - expected).max())
                    self.tell(case=name, first_seconds=first, seconds=seconds, tiles=len(plan.jobs),
                              seconds_of_336_tiles=seconds * 336 / len(plan.jobs), largest_level_difference=levels)  # fmt: skip

    def encode(self) -> None:
        """22 frames, in each precision; differences are of the posterior's mean."""
        height, width = (768, 1344) if self.is_released else (32, 64)
        vae = video_vae(self.arguments, self.device, torch.float32)
        clip = torch.randn(1, 3, 22, height, width, device=self.kind)
        with exact_float32():
            expected = vae.encode_moments(clip)
            seconds = self.timed(lambda: vae.encode_moments(clip), 1, warmup=0)["median_seconds"]
        self.tell(case="encode float32", seconds_of_22_frames=seconds, seconds_of_124_frames=seconds * 124 / 22)
        half, brain = (copy.deepcopy(vae.encoder).to(kind) for kind in (torch.float16, torch.bfloat16))
        dense = channels_last(copy.deepcopy(half))
        ways = {
            "tf32": (None, 1), "tf32, 4 tiles at once": (None, 4), "float16": (half, 1),
            "float16, 4 tiles at once": (half, 4), "float16, channels last": (dense, 1), "bfloat16": (brain, 1),
        }  # fmt: skip
        for name, (encoder, batch) in ways.items():
            with self.guard(f"encode {name}"), torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
                call = partial(vae.encode_moments, clip, encoder=encoder, tile_batch=batch)
                moments = call()
                seconds = self.timed(call, 1)["median_seconds"]
                told = compared([moments.chunk(2, 1)[0]], [expected.chunk(2, 1)[0]])
                self.tell(
                    case=f"encode {name}",
                    seconds_of_22_frames=seconds,
                    seconds_of_124_frames=seconds * 124 / 22,
                    **told,
                )


@dataclass(frozen=True, kw_only=True)
class KernelCase:
    """One operation at full size, and the bytes that it must read and write."""

    run: Callable[[Kernels], list[Tensor]]
    num_bytes: int


def kernel_cases(config: Any, inputs: Inputs, kind: str) -> dict[str, KernelCase]:
    rows, hidden = inputs.layout.num_rows, config.hidden_size
    heads, dim, pairs, ffn = (
        config.num_attention_heads,
        config.attention_head_dim,
        3 * config.rope_freq_dim,
        config.ffn_dim,
    )
    draw = partial(torch.randn, device=kind, dtype=torch.bfloat16)
    x, y, table = draw(1, rows, hidden), draw(1, rows, hidden), draw(6, 6, hidden)
    packed, projected = draw(1, rows, 3 * heads * dim), draw(1, rows, 2 * ffn)
    angles = torch.randn(rows, 1, pairs, device=kind)
    rotary = RotaryTable(cos=angles.cos().bfloat16(), sin=angles.sin().bfloat16())
    index = TableRows.of(inputs.timestep_indices.cpu() * 3 + inputs.layout.token_tags, torch.device(kind))
    # The stream of the video decoder: float32 beside half precision, 14 tiles of 1797 tokens.
    wide = torch.randn(1, min(rows, 14 * 1797), min(hidden, 2048), device=kind)
    branch = draw(wide.shape)
    norm, head_norm = RMSNorm(hidden, eps=1e-5), RMSNorm(dim, eps=1e-5)
    norm.weight, head_norm.weight = (nn.Parameter(draw(width), requires_grad=False) for width in (hidden, dim))
    shift, scale, gate = table[:, 0], table[:, 1], table[:, 2]

    def gate_add(kernels: Kernels) -> list[Tensor]:
        stream = x.clone()
        kernels.gate_add_(stream, y.clone(), gate, index)
        return [stream]

    def gate_norm(kernels: Kernels) -> list[Tensor]:
        stream = x.clone()
        return [kernels.gate_add_norm_modulate_(stream, y.clone(), gate, norm, scale, shift, index), stream]

    def scale_add(kernels: Kernels) -> list[Tensor]:
        stream = wide.clone()
        return [kernels.scale_add_norm_(stream, branch.clone(), wide[0, 0], wide[0, 1], 1e-5), stream]

    def rotate(kernels: Kernels) -> list[Tensor]:
        return [kernels.norm_rotate(packed.clone().chunk(3, -1)[0].view(1, rows, heads, dim), head_norm, rotary)]

    stream_bytes = x.nbytes
    return {
        "norm_modulate": KernelCase(
            run=lambda kernels: [kernels.norm_modulate(x, norm, scale, shift, index)], num_bytes=2 * stream_bytes
        ),
        # The copies that keep the inputs for the next call are counted with the operation.
        "gate_add_ and two copies": KernelCase(run=gate_add, num_bytes=7 * stream_bytes),
        "gate_add_norm_modulate_ and two copies": KernelCase(run=gate_norm, num_bytes=8 * stream_bytes),
        "scale_add_norm_ and two copies": KernelCase(run=scale_add, num_bytes=4 * wide.nbytes + 4 * branch.nbytes),
        "norm_rotate and a copy": KernelCase(run=rotate, num_bytes=2 * packed.nbytes + 2 * packed.nbytes // 3),
        "swiglu and a copy": KernelCase(
            run=lambda kernels: [kernels.swiglu(projected.clone())],
            num_bytes=3 * projected.nbytes + projected.nbytes // 2,
        ),
    }


def compared(ours: list[Tensor], expected: list[Tensor]) -> dict[str, Any]:
    """Largest difference, norm of the difference over that of the values, and the share of values that differ."""
    largest, relative, share = [], [], []
    for one, other in zip(ours, expected, strict=True):
        # In float32, for float64 copies of the largest tensors would not fit beside the weights.
        difference = one.float() - other.float()
        largest.append(difference.abs().max().item())
        relative.append((difference.norm() / other.float().norm()).item())
        share.append((difference != 0).float().mean().item())
    return {"largest_difference": max(largest), "relative_difference": max(relative), "share_that_differs": max(share)}


def block_of(name: str) -> int:
    """The block that a weight belongs to; -1 for those outside of the stack."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "transformer_blocks" else -1


def decode_to_host(vae: Any, z: Tensor, frames: Any, batch: int, mover: Any) -> None:
    move = mover(frames)
    for piece in vae.decode_clips(z, tile_batch=batch):
        unit = piece.float().mul_(0.225).add_(0.45).clamp_(0, 1)
        move.put(unit.mul_(255).round_().to(torch.uint8)[0].permute(1, 2, 3, 0))
    move.finish()


def channels_last(encoder: Any) -> Any:
    """Weights with their channels innermost, as matrix units read them."""
    return encoder.to(memory_format=torch.channels_last_3d)


def wall(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def environment(arguments: argparse.Namespace) -> dict[str, Any]:
    """Where and with what the numbers were made."""
    has_card = arguments.device == "cuda"
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]], "python": platform.python_version(),
        "torch": torch.__version__, "hardware": torch.cuda.get_device_name() if has_card else platform.machine(),
        "cuda": torch.version.cuda, "layers": arguments.layers, "backends": arguments.backends,
    }  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="result file to write (JSON)")
    parser.add_argument("--config", choices=("released", "tiny"), default="released")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backends", nargs="+", default=["CUDNN_ATTN"], metavar="NAME", help="attention backends")
    parser.add_argument("--layers", type=int, default=8, help="blocks of the comparison of modes")
    parser.add_argument("--repeats", type=int, default=2, help="timed evaluations of each mode")
    parser.add_argument("--only", nargs="+", help="sections to run")
    parser.add_argument("--budget-s", type=float, default=200.0, help="begin no section after this")
    with torch.inference_mode():
        Speed(parser.parse_args(argv)).run()


if __name__ == "__main__":
    main()
