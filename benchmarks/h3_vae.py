"""Our VAEs against the public ones: how far apart, how long to start, to encode and to decode, in one run.

    PYTHONPATH=src python -m benchmarks.h3_vae --config mini --output result.json

`mini` reads the embedded checkpoint into both and runs on the processor with one thread; seconds are the processor's, for
other work on the machine does not count there. Start-up is a process of its own each time, from nothing to both VAEs
loaded. `released` draws weights of the released sizes on a card and shares them: 73 frames of 1344x768 are decoded in the
mixed layout, 17 are encoded in float32, by the public class once with TF32 and once without. Ours and theirs take turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.h3_references import video_vae
from benchmarks.h3_step import Device
from torch import Tensor

from omnireel.attention import AttentionConfig, select_backend
from omnireel.models.minimax_h3.audio_vae import AudioVae
from omnireel.models.minimax_h3.facts import FACTS
from omnireel.models.minimax_h3.video_vae import TILE_BATCH, VideoVae, exact_float32
from omnireel.weights import build_empty

CPU = torch.device("cpu")
OUR_START = """
import torch
from pathlib import Path
from omnireel.attention import AttentionConfig, select_backend
from omnireel.models.minimax_h3.audio_vae import AudioVae
from omnireel.models.minimax_h3.video_vae import VideoVae
def select(role, category, head_dim):
    return select_backend(AttentionConfig(), role=role, category=category, head_dim=head_dim, platform_name="cpu",
                          preference=("TORCH_SDPA",))
device = torch.device("cpu")
VideoVae(Path({root!r}) / "vae", device=device, is_mixed=False, select=select)
AudioVae(Path({root!r}) / "audio_vae", device=device)
"""
THEIR_START = """
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
AutoencoderKLMiniMaxH3.from_pretrained({root!r} + "/vae")
AutoencoderKLMiniMaxH3Audio.from_pretrained({root!r} + "/audio_vae")
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One piece of work, done by both."""

    name: str
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", choices=("mini", "released"), default="mini")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    device = Device(kind="cuda" if arguments.config == "released" else "cpu")
    if device.kind == "cpu":
        torch.set_num_threads(1)
    result: dict[str, Any] = {"environment": environment(arguments, device), "cases": []}
    with torch.inference_mode():
        for row in mini(arguments.repeats) if arguments.config == "mini" else released(device, arguments.repeats):
            print(json.dumps(row), flush=True)
            result["cases"].append(row)
            arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def environment(arguments: argparse.Namespace, device: Device) -> dict[str, Any]:
    """Hardware, versions and command."""
    import diffusers

    card = torch.cuda.get_device_name() if device.kind == "cuda" else platform.processor() or platform.machine()
    command = ["h3_vae.py", "--config", arguments.config, "--repeats", str(arguments.repeats)]
    return {
        "command": command, "hardware": card, "torch": torch.__version__, "cuda": torch.version.cuda,
        "diffusers": diffusers.__version__, "threads": torch.get_num_threads(),
    }  # fmt: skip


def compared(case: Case, seconds: Callable[[Callable[[], object]], float], repeats: int) -> dict[str, Any]:
    """One row: the largest difference of any value, then both in turns."""
    ours, theirs = case.ours().double(), case.theirs().double()
    difference = (ours - theirs).abs().max().item()
    del ours, theirs
    taken: dict[str, list[float]] = {"omnireel": [], "diffusers": []}
    for _ in range(repeats):
        taken["omnireel"].append(seconds(case.ours))
        taken["diffusers"].append(seconds(case.theirs))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return {
        "case": case.name, "max_difference": difference, "seconds": taken, "median_seconds": medians,
        "ratio": medians["omnireel"] / medians["diffusers"],
    }  # fmt: skip


def processor_seconds(call: Callable[[], object]) -> float:
    """What the processor was busy for."""
    start = time.process_time()
    call()
    return time.process_time() - start


def mini(repeats: int) -> Iterator[dict[str, Any]]:
    """The embedded checkpoint on the processor."""
    root = FACTS.builtin["mini-h3"]
    assert root is not None
    yield start_up(root, repeats)
    for case in (*video_cases(root), *audio_cases(root)):
        yield compared(case, processor_seconds, repeats)


def start_up(root: Path, repeats: int) -> dict[str, Any]:
    """Seconds of a process that loads both VAEs and does nothing else, and of one that imports torch."""
    programs = {"omnireel": OUR_START, "diffusers": THEIR_START, "torch alone": "import torch"}
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            start = time.perf_counter()
            command = [sys.executable, "-W", "ignore", "-c", program.format(root=str(root))]
            subprocess.run(command, check=True, capture_output=True)
            taken[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    ratio = medians["omnireel"] / medians["diffusers"]
    return {"case": "start-up, both VAEs", "seconds": taken, "median_seconds": medians, "ratio": ratio}


def select(role: str, category: str, head_dim: int) -> Any:
    """The attention backend of a processor."""
    return select_backend(
        AttentionConfig(), role=role, category=category, head_dim=head_dim, platform_name="cpu",
        preference=("TORCH_SDPA",),
    )  # fmt: skip


def video_cases(root: Path) -> Iterator[Case]:
    """Encoding and decoding, one tile and several, whole and odd lengths."""
    from diffusers import AutoencoderKLMiniMaxH3

    ours = VideoVae(root / "vae", device=CPU, is_mixed=False, select=select)._vae
    theirs = AutoencoderKLMiniMaxH3.from_pretrained(root / "vae").eval()
    for latents, height, width in ((32, 16, 16), (7, 24, 42), (9, 8, 12)):
        z = torch.randn(1, 24, latents, height, width)
        name = f"decode {width * 16}x{height * 16}, {latents} latents"
        yield Case(name=name, ours=partial(ours.decode, z), theirs=partial(their_pixels, theirs, z))
    for frames, height, width in ((22, 128, 192), (1, 288, 320), (5, 64, 96)):
        video = torch.randn(1, 3, frames, height, width)
        name = f"encode {width}x{height}, {frames} frames"
        yield Case(name=name, ours=partial(ours.encode_moments, video), theirs=partial(their_moments, theirs, video))


def audio_cases(root: Path) -> Iterator[Case]:
    """Sound, both ways."""
    from diffusers import AutoencoderKLMiniMaxH3Audio

    ours = AudioVae(root / "audio_vae", device=CPU)._vae
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        theirs = AutoencoderKLMiniMaxH3Audio.from_pretrained(root / "audio_vae").eval()
    wave, z = 0.1 * torch.randn(2, 64_001), torch.randn(2, 32, 80)
    yield Case(name="decode 2 s of sound", ours=partial(ours.decode, z), theirs=partial(their_wave, theirs, z))
    yield Case(name="encode 2 s of sound", ours=partial(ours.encode, wave), theirs=partial(their_mean, theirs, wave))


def their_pixels(vae: Any, z: Tensor) -> Tensor:
    """[1,3,T,H,W], on the host."""
    pixels: Tensor = vae.decode(z, return_dict=False)[0].cpu()
    return pixels


def their_moments(vae: Any, video: Tensor) -> Tensor:
    """[1,2C,Tl,Hl,Wl]."""
    moments: Tensor = vae.encode(video, return_dict=False)[0].parameters
    return moments


def their_wave(vae: Any, z: Tensor) -> Tensor:
    """[2,N]."""
    wave: Tensor = vae.decode(z, return_dict=False)[0][:, 0]
    return wave


def their_mean(vae: Any, wave: Tensor) -> Tensor:
    """[2,C,Ta]."""
    mean: Tensor = vae.encode(wave[:, None], return_dict=False)[0].mode()
    return mean


def released(device: Device, repeats: int) -> Iterator[dict[str, Any]]:
    """Random weights of the released sizes on a card."""
    arguments = argparse.Namespace(config="released")
    ours = video_vae(arguments, device, torch.bfloat16)
    theirs = shared(ours, device)
    z = torch.randn(1, 24, 22, 48, 84, device=device.kind)
    for batch, backend in ((1, "native"), (1, "_native_cudnn"), (TILE_BATCH, "_native_cudnn")):
        theirs.set_attention_backend(backend)
        name = f"decode 1344x768, 22 latents, mixed, ours {batch} at once, theirs with {backend}"
        case = Case(name=name, ours=partial(on_host, ours, z, batch), theirs=partial(their_pixels, theirs, z))
        yield compared(case, device.seconds, repeats)
    del ours, theirs
    torch.cuda.empty_cache()
    ours = video_vae(arguments, device, torch.float32)
    theirs = shared(ours, device)
    video = torch.randn(1, 3, 17, 768, 1344, device=device.kind)
    for name, mode in (("without TF32", exact_float32), ("with TF32", tensor_float32)):
        case = Case(
            name=f"encode 1344x768, 17 frames, float32, theirs {name}",
            ours=within(exact_float32, partial(ours.encode_moments, video)),
            theirs=within(mode, partial(their_moments, theirs, video)),
        )
        yield compared(case, device.seconds, 1)


def shared(ours: torch.nn.Module, device: Device) -> Any:
    """The public class of the released sizes around our weights."""
    from diffusers import AutoencoderKLMiniMaxH3

    sizes = {**asdict(ours.config), "latents_mean": (0.0,) * 24, "latents_std": (1.0,) * 24}  # type: ignore[call-overload]
    theirs = build_empty(partial(AutoencoderKLMiniMaxH3, **sizes))
    theirs.load_state_dict(ours.state_dict(), assign=True)
    return theirs.to(device.kind).eval()


def on_host(vae: Any, z: Tensor, batch: int) -> Tensor:
    """Every clip's pixels on the host as soon as it is decoded."""
    return torch.cat([piece.cpu() for piece in vae.decode_clips(z, tile_batch=batch)], dim=2)


@contextmanager
def tensor_float32() -> Iterator[None]:
    """Convolutions as torch runs them unless told otherwise."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        yield


def within(mode: Any, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """`call`, in a mode of its own."""

    def wrapped() -> Tensor:
        with mode():
            return call()

    return wrapped


if __name__ == "__main__":
    main()
