"""Seconds and memory of one evaluation of the MiniMax-H3 DiT, with random weights of the released sizes.

    PYTHONPATH=src python benchmarks/h3_step.py --diffusers --profile --output result.json

Weights are drawn on the device in the mixed layout (bfloat16, the heads and the time embedding float32). For every shape
and attention backend: warm-up, then timed evaluations, peak memory, and a check that the outputs are finite. `--diffusers`
measures the public implementation on the same weights in the same run, and how far both are from float32 on the first
blocks of the stack. The result file is written after every measurement, so a run that is cut short leaves what it had.
`--parts check,step,smaller,mini` and others measure the bars of speed instead, see h3_parts.py.
`--config tiny` runs anywhere in seconds, as a test of this script.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnireel.attention import AttentionConfig, AttentionSpec, select_backend
from omnireel.models.minimax_h3.limits import latent_frames, sound_latents_of
from omnireel.models.minimax_h3.packing import AUDIO_TAG, TEXT_TAG, PackedLayout, Target, pack
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, TransformerConfig, stored_dtype

RELEASED = TransformerConfig(
    num_attention_heads=56,
    attention_head_dim=128,
    hidden_size=5376,
    num_layers=50,
    num_refiner_layers=2,
    ffn_dim=14336,
    in_channels=24,
    audio_in_channels=32,
    patch_size=(1, 2, 2),
    text_dim=5120,
    freq_dim=256,
    time_embed_hidden_dim=5376,
    time_embed_dim=2688,
    rope_freq_dim=16,
    norm_eps=1e-5,
    qk_norm_eps=1e-5,
    final_norm_eps=1e-5,
)
TINY = replace(
    RELEASED, num_attention_heads=2, hidden_size=64, num_layers=3, ffn_dim=96, text_dim=48, time_embed_hidden_dim=64
)
# Pixels of a latent, in height and in width.
LATENT_SIZE = 16
DIFFUSERS_BACKENDS = {"TORCH_SDPA": "native", "CUDNN_ATTN": "_native_cudnn"}
FAMILIES = (
    ("attention", ("flash", "fmha", "cudnn", "attention", "sdpa")),
    ("matrix products", ("gemm", "nvjet", "cutlass", "splitk", "gemv", "addmm", "::mm", "bmm")),
    ("norms", ("rms_norm", "layer_norm", "norm")),
    ("copies", ("copy", "memcpy", "memset", "cat", "fill")),
    ("elementwise", ("elementwise", "silu", "mul", "add")),
    ("gather and scatter", ("index", "gather", "scatter")),
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One size of clip; `text_rows` stands for the prompt."""

    width: int
    height: int
    num_frames: int
    text_rows: int = 128

    @property
    def name(self) -> str:
        return f"{self.width}x{self.height}x{self.num_frames}"


SHAPES: dict[str, tuple[Shape, ...]] = {
    "released": (
        Shape(width=1344, height=768, num_frames=209),
        Shape(width=672, height=384, num_frames=209),
        Shape(width=960, height=544, num_frames=124),
    ),
    "tiny": (Shape(width=64, height=32, num_frames=22, text_rows=9), Shape(width=32, height=32, num_frames=22)),
}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Everything one evaluation reads; index tensors on the device, what the host plans by on the host."""

    layout: PackedLayout
    video: Tensor
    audio: Tensor
    text: Tensor
    timestep: Tensor
    timestep_indices: Tensor


@dataclass(frozen=True, kw_only=True)
class Device:
    """Clock and memory of where the benchmark runs."""

    kind: str

    def wait(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], object]) -> float:
        """Device time of one call."""
        if self.kind != "cuda":
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    @contextmanager
    def memory(self) -> Iterator[dict[str, float]]:
        """Fills in GiB at the end: the peak of what was in use and of what was held, and what was in use before."""
        peak: dict[str, float] = {}
        if self.kind != "cuda":
            yield peak
            return
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        peak["before_gib"] = torch.cuda.memory_allocated() / 2**30
        yield peak
        peak["allocated_gib"] = torch.cuda.max_memory_allocated() / 2**30
        peak["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30


def random_weights(config: TransformerConfig, device: str, seed: int = 0) -> dict[str, Tensor]:
    """Every tensor drawn where it will stay. Norms near one, all else small enough for finite activations."""
    rng = torch.Generator(device).manual_seed(seed)
    weights = {}
    for name, empty in build(config, device, "TORCH_SDPA", torch.bfloat16).named_parameters():
        tensor = torch.empty(empty.shape, dtype=stored_dtype(name, torch.bfloat16), device=device)
        is_norm = name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "norm_q.weight", "norm_k.weight"))
        weights[name] = tensor.normal_(1.0 if is_norm else 0.0, 0.02, generator=rng)
    return weights


def capability_of(device: str) -> str:
    """The card's, as attention backends know it."""
    return ".".join(map(str, torch.cuda.get_device_capability())) if device == "cuda" else ""


def build(
    config: TransformerConfig,
    device: str,
    backend: str,
    dtype: torch.dtype,
    weights: dict[str, Tensor] | None = None,
) -> MiniMaxH3Transformer:
    """Our model around `weights`, which it shares; without weights it stays empty."""
    chosen = AttentionConfig(default=AttentionSpec(backend=backend))

    def select(role: str, category: str, head_dim: int) -> Any:
        return select_backend(
            chosen,
            role=role,
            category=category,
            head_dim=head_dim,
            platform_name=device,
            capability=capability_of(device),
            preference=(),
            dtype=dtype,
        )

    with torch.device("meta"):
        model = MiniMaxH3Transformer(config, select=select)
    if weights is not None:
        model.load_state_dict(weights, strict=True, assign=True)
    return model


def build_diffusers(config: TransformerConfig, device: str, backend: str, weights: dict[str, Tensor]) -> Any:
    """The public model around the same tensors."""
    from diffusers import MiniMaxH3Transformer3DModel

    with torch.device("meta"):
        model = MiniMaxH3Transformer3DModel(**asdict(config))
    model.load_state_dict(weights, strict=True, assign=True)
    # The rotary frequencies are no parameter: built with the rest, they would stay empty.
    model.rope = type(model.rope)(rope_freq_dim=config.rope_freq_dim, rope_theta=config.rope_theta).to(device)
    model.set_attention_backend(DIFFUSERS_BACKENDS[backend])
    return model.eval().requires_grad_(False)


def make_inputs(config: TransformerConfig, shape: Shape, device: str, seed: int = 1) -> Inputs:
    target = Target(
        latent_frames=latent_frames(shape.num_frames),
        latent_height=shape.height // LATENT_SIZE,
        latent_width=shape.width // LATENT_SIZE,
        sound_latents=sound_latents_of(shape.num_frames),
    )
    layout = pack(torch.full((shape.text_rows,), TEXT_TAG), target, patch_size=config.patch_size)
    rng = torch.Generator(device).manual_seed(seed)
    draw = partial(torch.randn, generator=rng, device=device)
    return Inputs(
        layout=layout,
        video=draw(1, layout.video_indices.shape[0], config.video_row_dim),
        audio=draw(1, layout.audio_indices.shape[0], config.audio_in_channels),
        text=draw(1, shape.text_rows, config.text_dim),
        timestep=torch.tensor([0.25, 0.625], device=device),
        # Sound rows are at another noise level than all others, as in every step but the first.
        timestep_indices=(layout.token_tags == AUDIO_TAG).to(torch.int64),
    )


Step = Callable[[], tuple[Tensor, Tensor]]


def our_step(model: MiniMaxH3Transformer, inputs: Inputs) -> Step:
    """One evaluation; what is computed once a request is computed here."""
    device = inputs.video.device
    text = model.refine_text(inputs.text)
    return partial(
        model,
        inputs.video,
        inputs.audio,
        text,
        timestep_M=inputs.timestep,
        timestep_indices_S=inputs.timestep_indices,
        token_tags_S=inputs.layout.token_tags,
        rotary=model.rotary(inputs.layout.position_ids.to(device), text.dtype),
        video_indices=inputs.layout.video_indices.to(device),
        audio_indices=inputs.layout.audio_indices.to(device),
        text_indices=inputs.layout.text_indices.to(device),
    )


def diffusers_step(model: Any, inputs: Inputs) -> Step:
    device, layout = inputs.video.device, inputs.layout
    return partial(
        model,
        hidden_states=inputs.video,
        audio_hidden_states=inputs.audio,
        encoder_hidden_states=inputs.text,
        timestep=inputs.timestep,
        timestep_indices=inputs.timestep_indices.to(device),
        token_tags=layout.token_tags.to(device),
        position_ids=layout.position_ids.to(device),
        video_indices=layout.video_indices.to(device),
        audio_indices=layout.audio_indices.to(device),
        text_indices=layout.text_indices.to(device),
        return_dict=False,
    )


def step_flops(config: TransformerConfig, num_rows: int) -> float:
    """Floating-point operations of the blocks: four projections, the feed-forward, and attention over all rows."""
    inner = config.num_attention_heads * config.attention_head_dim
    linear = 2 * num_rows * config.hidden_size * (4 * inner + 3 * config.ffn_dim)
    return float(config.num_layers * (linear + 4 * inner * num_rows**2))


def measure(step: Step, inputs: Inputs, device: Device, *, warmup: int, repeats: int, flops: float) -> dict[str, Any]:
    """Times and memory of `step`; fails when its outputs are not of the inputs' shapes, or not finite."""
    with device.memory() as peak:
        for _ in range(warmup):
            outputs = step()
        seconds = [device.seconds(step) for _ in range(repeats)]
        outputs = step() if not warmup else outputs
    expected = [inputs.video.shape, inputs.audio.shape]
    if [output.shape for output in outputs] != expected:
        raise SystemExit(f"outputs are shaped {[tuple(output.shape) for output in outputs]}")
    if not all(bool(output.isfinite().all()) for output in outputs):
        raise SystemExit("outputs are not finite")
    median = statistics.median(seconds)
    return {
        "rows": inputs.layout.num_rows,
        "seconds": seconds,
        "median_seconds": median,
        "min_seconds": min(seconds),
        "max_seconds": max(seconds),
        "spread": (max(seconds) - min(seconds)) / median,
        "tflops_per_second": flops / median / 1e12,
        "memory": peak,
        "output_std": [output.float().std().item() for output in outputs],
    }


def relative_error(outputs: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Norm of the difference over norm of the exact values, for picture and sound."""
    errors = {}
    for name, value, reference in zip(("video", "audio"), outputs, exact, strict=True):
        errors[name] = ((value.double() - reference.double()).norm() / reference.double().norm()).item()
    return errors


def kernel_table(step: Step, device: Device) -> list[dict[str, Any]]:
    """Device seconds of one evaluation by family of kernels, most first."""
    from torch.profiler import ProfilerActivity, profile

    activity = ProfilerActivity.CUDA if device.kind == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        step()
        device.wait()
    families: dict[str, dict[str, Any]] = {}
    for event in profiler.key_averages():
        micros = event.self_device_time_total if device.kind == "cuda" else event.self_cpu_time_total
        if not micros:
            continue
        family = family_of(event.key)
        row = families.setdefault(family, {"family": family, "seconds": 0.0, "calls": 0, "kernels": {}})
        row["seconds"] += micros / 1e6
        row["calls"] += event.count
        row["kernels"][event.key[:120]] = {"seconds": micros / 1e6, "calls": event.count}
    return sorted(families.values(), key=lambda row: -row["seconds"])


def family_of(kernel: str) -> str:
    """The first family one of whose words is in the kernel's name."""
    lowered = kernel.lower()
    return next((name for name, words in FAMILIES if any(word in lowered for word in words)), "other")


class Benchmark:
    """One run: what was asked, the weights, and the results so far, which are saved after each measurement."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.started = time.perf_counter()
        self.device = Device(kind=arguments.device)
        self.config = RELEASED if arguments.config == "released" else TINY
        self.results: dict[str, Any] = {"environment": environment(arguments), "cases": [], "errors": [], "skipped": []}
        begin = time.perf_counter()
        self.weights = random_weights(self.config, arguments.device)
        self.device.wait()
        self.results["weights"] = {
            "seconds": time.perf_counter() - begin,
            "gib": sum(tensor.nbytes for tensor in self.weights.values()) / 2**30,
            "parameters": sum(tensor.numel() for tensor in self.weights.values()),
        }
        self.shapes = SHAPES[arguments.config]

    def run(self) -> None:
        """Most telling first: what the time budget cuts off is what matters least."""
        arguments = self.arguments
        first, *others = arguments.backends
        for shape in self.shapes:
            self.case("omnireel", shape, first)
        self.errors(self.shapes[1])
        if arguments.diffusers:
            for shape in self.shapes:
                self.case("diffusers", shape, first)
        if arguments.profile:
            self.profile(self.shapes[0], first)
        for backend in others:
            for shape in reversed(self.shapes):
                self.case("omnireel", shape, backend)

    def case(self, engine: str, shape: Shape, backend: str) -> None:
        name = f"{engine} {shape.name} {backend}"
        if self.out_of_time(name):
            return
        inputs = make_inputs(self.config, shape, self.arguments.device)
        repeats = self.arguments.steps if shape == self.shapes[0] else self.arguments.steps + 2
        measured = measure(
            self.step(engine, inputs, backend),
            inputs,
            self.device,
            warmup=self.arguments.warmup,
            repeats=repeats,
            flops=step_flops(self.config, inputs.layout.num_rows),
        )
        case = {"engine": engine, "shape": shape.name, "text_rows": shape.text_rows, "attention": backend}
        self.results["cases"].append(case | measured)
        peak = measured["memory"].get("allocated_gib")
        told = "" if peak is None else f", peak {peak:.2f} GiB"
        self.tell(f"{name}: {measured['median_seconds']:.4f} s, spread {measured['spread']:.1%}{told}")

    def step(self, engine: str, inputs: Inputs, backend: str) -> Step:
        if engine == "diffusers":
            return diffusers_step(build_diffusers(self.config, self.arguments.device, backend, self.weights), inputs)
        return our_step(build(self.config, self.arguments.device, backend, torch.bfloat16, self.weights), inputs)

    def errors(self, shape: Shape) -> None:
        """How far the mixed layout is from float32 over the first blocks, and every engine and backend from ours."""
        if self.out_of_time(f"errors {shape.name}"):
            return
        depth = min(self.arguments.error_layers, self.config.num_layers)
        config = replace(self.config, num_layers=depth)
        deeper = tuple(f"transformer_blocks.{index}." for index in range(depth, self.config.num_layers))
        weights = {name: tensor for name, tensor in self.weights.items() if not name.startswith(deeper)}
        inputs = make_inputs(config, shape, self.arguments.device)
        exact_weights = {name: tensor.float() for name, tensor in weights.items()}
        exact = our_step(build(config, self.arguments.device, "TORCH_SDPA", torch.float32, exact_weights), inputs)()
        del exact_weights
        for backend in self.arguments.backends:
            ours = our_step(build(config, self.arguments.device, backend, torch.bfloat16, weights), inputs)()
            self.error("omnireel", backend, "float32 omnireel", depth, relative_error(ours, exact))
            if self.arguments.diffusers:
                model = build_diffusers(config, self.arguments.device, backend, weights)
                theirs = diffusers_step(model, inputs)()
                self.error("diffusers", backend, "float32 omnireel", depth, relative_error(theirs, exact))
                self.error("omnireel", backend, "diffusers, same backend", depth, relative_error(ours, theirs))

    def error(self, engine: str, backend: str, against: str, depth: int, error: dict[str, float]) -> None:
        self.results["errors"].append(
            {"engine": engine, "attention": backend, "against": against, "layers": depth, "relative": error}
        )
        self.tell(
            f"{engine} {backend} against {against}, {depth} blocks: video {error['video']:.3g}, audio {error['audio']:.3g}"
        )

    def profile(self, shape: Shape, backend: str) -> None:
        if self.out_of_time(f"profile {shape.name} {backend}"):
            return
        step = self.step("omnireel", make_inputs(self.config, shape, self.arguments.device), backend)
        table = kernel_table(step, self.device)
        self.results["profile"] = {"shape": shape.name, "attention": backend, "families": table}
        for row in table:
            self.tell(f"  {row['family']:<20} {row['seconds']:9.4f} s {row['calls']:6d} calls")

    def out_of_time(self, name: str) -> bool:
        is_late: bool = time.perf_counter() - self.started > self.arguments.budget_seconds
        if is_late:
            self.results["skipped"].append(name)
            self.tell(f"{name}: skipped, the time budget is spent")
        return is_late

    def tell(self, line: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {line}", flush=True)
        self.results["total_seconds"] = time.perf_counter() - self.started
        self.arguments.output.write_text(json.dumps(self.results, indent=1) + "\n")


def environment(arguments: argparse.Namespace) -> dict[str, Any]:
    """Where and with what the numbers were made."""
    told: dict[str, Any] = {
        "command": ["h3_step.py", *sys.argv[1:]],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "config": arguments.config,
        "device": arguments.device,
        "warmup": arguments.warmup,
        "hardware": platform.processor() or platform.machine(),
    }
    if arguments.device == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        told["hardware"] = torch.cuda.get_device_name()
        told["driver"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        told["cuda"] = torch.version.cuda
        told["cudnn"] = torch.backends.cudnn.version()
        told["triton"] = metadata.version("triton")
    if arguments.diffusers:
        told["diffusers"] = metadata.version("diffusers")
    return told


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    has_cuda = torch.cuda.is_available()
    parser.add_argument("--output", type=Path, required=True, help="result file to write (JSON)")
    parser.add_argument("--config", choices=tuple(SHAPES), default="released")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if has_cuda else "cpu")
    parser.add_argument("--backends", nargs="+", metavar="NAME", help="attention backends, most telling first")
    parser.add_argument("--warmup", type=int, default=1, help="evaluations before the clock runs")
    parser.add_argument("--steps", type=int, default=3, help="timed evaluations of the first shape, two more of others")
    parser.add_argument("--diffusers", action="store_true", help="measure the public implementation too")
    parser.add_argument("--profile", action="store_true", help="tell the time of each family of kernels")
    parser.add_argument("--error-layers", type=int, default=4, help="blocks of the comparison with float32")
    parser.add_argument("--budget-seconds", type=float, default=270.0, help="start no measurement after this")
    parser.add_argument("--parts", type=lambda text: text.split(","), metavar="A,B", help="measure these parts instead")
    parser.add_argument("--layers", type=int, default=4, help="blocks over which parts compare ways to run them")
    parser.add_argument("--repeats", type=int, default=2, help="timed calls of a part's measurement")
    parser.add_argument("--rounds", type=int, default=9, help="turns of ours and theirs on a processor")
    parser.add_argument("--dry-run", action="store_true", help="tell which parts would run and for how long")
    parser.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--lost", nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help="forget the parts that the result file has")
    arguments = parser.parse_args(argv)
    if arguments.parts:
        return arguments
    if arguments.backends is None:
        arguments.backends = ["CUDNN_ATTN", "TORCH_SDPA"] if arguments.device == "cuda" else ["TORCH_SDPA"]
    return arguments


def main(argv: list[str] | None = None) -> None:
    """Runs the benchmark."""
    arguments = parse(argv)
    if arguments.parts:
        # The script's own folder is all that Python looks in by itself.
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from benchmarks.h3_parts import Parts

        arguments.budget_s = arguments.budget_seconds
        with torch.inference_mode():
            Parts(arguments).run()
        return
    with torch.inference_mode():
        Benchmark(arguments).run()


if __name__ == "__main__":
    main()
