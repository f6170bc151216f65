"""The parts `decode` and `encode`: the video VAE in every way that it can run, and the convolutions that encoding is made of."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch
from benchmarks.h3_references import video_vae
from benchmarks.h3_speed import compared, decode_to_host
from torch import Tensor, nn
from torch.nn import functional as F

from omnireel.acceleration import compile_blocks
from omnireel.layers.kernels import TRACEABLE, why_not_fused
from omnireel.layers.kernels.frames import Window, frame_kernels
from omnireel.models.minimax_h3.frame_encoder import FrameEncoder
from omnireel.models.minimax_h3.frame_mover import Direct, Overlapped
from omnireel.models.minimax_h3.video_vae import HALF_TOLERANCE, exact_float32

Frames = np.ndarray[Any, Any]


def vae_of(run: Any, dtype: torch.dtype, without: str = "") -> Any:
    """The video VAE, its attention by what is right."""
    order = [
        name for name in run.platform.attention_preference if name != without and run.is_right(f"attention {name} 64")
    ]
    return video_vae(run.arguments, run.device, dtype, preference=order)


def decode(run: Any) -> None:
    """A short clip as it is, with fused kernels and compiled; then a whole one of 209 frames to bytes on the host in the best way."""
    size = (768, 1344) if run.is_released else (32, 64)
    short, whole = (12, 62) if run.is_released else (7, 7)
    mover: Any = Overlapped if run.kind == "cuda" else Direct
    expected = decoded(run, vae_of(run, torch.bfloat16), "eager, 14 tiles at once", short, size, 14, mover)[1]
    found: list[tuple[float, str, int, Any]] = []
    ways: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {"compiled": (partial(compiled_vae, run), (14, 7))}
    if run.kind == "cuda" and why_not_fused() is None:
        ways = {
            "fused": (partial(fused_vae, run), (14, 7, 28)),
            "fused, the next attention": (partial(fused_vae, run, "FLASH_ATTN"), (14,)),
            **ways,
        }
    for way, (make, batches) in ways.items():
        with run.guard(f"decode {way}"):
            vae = make()
            for batch in batches:
                name = f"{way}, {batch} tiles at once"
                seconds, _ = decoded(run, vae, name, short, size, batch, mover, expected)
                found.append((seconds, way, batch, vae))
    if found:
        _, way, batch, vae = min(found, key=lambda item: item[0])
        decoded(run, vae, f"{way}, {batch} tiles at once, direct", short, size, batch, Direct, expected)
        decoded(run, vae, f"a clip, {way}, {batch} tiles at once", whole, size, batch, mover)


def fused_vae(run: Any, without: str = "") -> Any:
    """Its decoder with Triton kernels. without: an attention backend."""
    vae = vae_of(run, torch.bfloat16, without)
    vae.decoder.use(run.fused())
    return vae


def compiled_vae(run: Any) -> Any:
    """Its decoder compiled block by block, of operations that a compiler can fuse."""
    vae = vae_of(run, torch.bfloat16)
    vae.decoder.use(TRACEABLE)
    compiler = "inductor" if run.kind == "cuda" else "aot_eager"
    compile_blocks(vae, ("decoder.transformer_blocks",), name="vae", backend=compiler)
    return vae


def decoded(
    run: Any,
    vae: Any,
    name: str,
    latents: int,
    size: tuple[int, int],
    batch: int,
    mover: Any,
    expected: Frames | None = None,
) -> tuple[float, Frames]:
    """Seconds of a clip and its frames; told with the largest difference from those expected."""
    height, width = size
    rng = torch.Generator(run.kind).manual_seed(3)
    z = torch.randn(1, 24, latents, height // 16, width // 16, device=run.kind, generator=rng)
    frames = np.empty((vae.config.clips.frames_of(latents), height, width, 3), np.uint8)
    tiles = len(vae.decode_plan(latents, height // 16, width // 16).jobs)
    call = partial(decode_to_host, vae, z, frames, batch, mover)
    with run.device.memory() as memory:
        first = run.wall_of(call, 1)
        seconds = [run.wall_of(call, 1) for _ in range(1 if run.spent > run.arguments.budget_s else 2)]
    median = statistics.median(seconds)
    levels = None if expected is None else int(np.abs(frames.astype(np.int16) - expected).max())
    run.tell(case=f"decode {name}", frames=len(frames), tiles=tiles, first_seconds=first, seconds=seconds, median_seconds=median,
             milliseconds_a_tile=1e3 * median / tiles, largest_level_difference=levels, memory=memory,
             attention=vae.decoder.transformer_blocks[0].attn.attend.backend.name)  # fmt: skip
    return median, frames


def encode(run: Any) -> None:
    """22 frames in each way and a clip of 124 in the quickest within the tolerance."""
    height, width = (768, 1344) if run.is_released else (32, 64)
    vae = vae_of(run, torch.float32)
    clip = torch.randn(1, 3, 22, height, width, device=run.kind)
    with exact_float32():
        made: list[Tensor] = []
        seconds = run.wall_of(lambda: made.append(vae.encode_moments(clip, is_trimmed=True)), 1)
        expected = made[0].chunk(2, 1)[0]
    run.tell(case="encode float32", seconds_of_22_frames=seconds)
    if run.kind == "cuda":
        with run.guard("encode convolutions"):
            convolutions(run)
    kernels = frame_kernels(torch.device(run.kind))
    make = partial(FrameEncoder, vae.encoder, kernels=kernels)
    half = torch.float16
    ways: dict[str, tuple[Callable[[], Any], int, bool]] = {
        "float16, one pass, flat": (partial(make, dtype=half, is_flat=True), 4, False),
        "float16, one pass, deep": (partial(make, dtype=half, is_flat=False), 4, False),
        "float16, one pass, flat, searched": (partial(make, dtype=half, is_flat=True), 4, True),
        "float16, one pass, deep, searched": (partial(make, dtype=half, is_flat=False), 4, True),
        "float16": (lambda: run.filled_half(vae.encoder), 4, False),
        "tf32, one pass, flat": (partial(make, dtype=torch.float32, is_flat=True), 4, False),
    }
    found = [(encoded(run, vae, clip, name, way, expected), name) for name, way in ways.items()]
    seconds, name = min(found)
    if seconds == inf:
        return
    whole = torch.randn(1, 3, 124 if run.is_released else 22, height, width, device=run.kind)
    make_encoder, batch, is_searched = ways[name]
    with torch.backends.cudnn.flags(enabled=True, benchmark=is_searched, allow_tf32=True):
        encoder = make_encoder()
        told = run.measured(lambda: vae.encode_moments(whole, encoder=encoder, tile_batch=batch, is_trimmed=True), 1)
    run.tell(case="encode a clip", frames=whole.shape[2], way=name, **told)


def encoded(
    run: Any, vae: Any, clip: Tensor, name: str, way: tuple[Callable[[], Any], int, bool], expected: Tensor
) -> float:
    """Seconds of one way, infinite where it fails or is outside of the tolerance."""
    make, batch, is_searched = way
    found = inf
    with (
        run.guard(f"encode {name}"),
        torch.backends.cudnn.flags(enabled=True, benchmark=is_searched, allow_tf32=True),
    ):
        call = partial(vae.encode_moments, clip, encoder=make(), tile_batch=batch, is_trimmed=True)
        # The first call, which compiles and searches, is the one that is compared.
        told = compared([call().chunk(2, 1)[0]], [expected])
        run.device.wait()
        with run.device.memory() as memory:
            seconds = min(run.device.seconds(call) for _ in range(2))
        if told["relative_difference"] <= HALF_TOLERANCE:
            found = seconds
        run.tell(case=f"encode {name}", seconds_of_22_frames=seconds, memory=memory, **told)
    return found


def convolutions(run: Any) -> None:
    """The two convolutions that most of encoding is made of, over four tiles: over time and space with channels outside and
    innermost, and over space with earlier frames as channels; then norm, SiLU and margins before them.
    """
    kernels = frame_kernels(torch.device("cuda"))
    for channels, edge in ((128, 256), (256, 128)):
        x = torch.randn(4, 17, edge, edge, channels, device="cuda", dtype=torch.float16)
        weight = torch.randn(channels, channels, 3, 3, 3, device="cuda", dtype=torch.float16) / (27 * channels) ** 0.5
        flops = 2.0 * x.numel() * 27 * channels
        deep = F.pad(x, (0, 0, 1, 1, 1, 1, 2, 0)).permute(0, 4, 1, 2, 3)
        weights = weight.transpose(1, 2).flatten(1, 2).contiguous(memory_format=torch.channels_last)
        last = weight.to(memory_format=torch.channels_last_3d)
        beside = torch.cat([deep[:, :, tap : tap + 17] for tap in range(3)], 1).permute(0, 2, 3, 4, 1).flatten(0, 1)
        flat = beside.contiguous().permute(0, 3, 1, 2)
        outside = deep.contiguous()
        calls: dict[str, Callable[[], Tensor]] = {
            "over time, channels innermost": lambda deep=deep, last=last: F.conv3d(deep, last),  # type: ignore[misc]
            "over time, channels outside": lambda outside=outside, weight=weight: F.conv3d(outside, weight),  # type: ignore[misc]
            "over space": lambda flat=flat, weights=weights: F.conv2d(flat, weights),  # type: ignore[misc]
        }
        for is_searched in (False, True):
            for name, call in calls.items():
                if is_searched and name.endswith("outside"):
                    continue
                with (
                    run.guard(f"convolution {name} {channels}"),
                    torch.backends.cudnn.flags(enabled=True, benchmark=is_searched, allow_tf32=True),
                ):
                    seconds = run.timed(call, 5, warmup=2)["median_seconds"]
                    run.tell(case=f"convolution {name}{', searched' if is_searched else ''}", channels=channels, edge=edge,
                             milliseconds=1e3 * seconds, tflops_per_second=flops / seconds / 1e12)  # fmt: skip
        norm = nn.GroupNorm(32, channels, device="cuda", dtype=torch.float16)
        for taps in (1, 3):
            window = Window(taps=taps, past=2, stride=1, margins=(1, 1))
            statistic = kernels.group_norm(x, norm)
            for name, step in {
                "statistics": lambda: kernels.group_norm(x, norm),  # noqa: B023 - called before the next turn
                "norm, SiLU and margins": lambda: kernels.windows(x, window, statistic),  # noqa: B023
            }.items():
                seconds = run.timed(step, 5, warmup=2)["median_seconds"]
                count = 1 if name == "statistics" else 1 + taps
                run.tell(case=f"encoder's {name}", channels=channels, taps=taps, milliseconds=1e3 * seconds,
                         terabytes_per_second=count * x.nbytes / seconds / 1e12)  # fmt: skip
