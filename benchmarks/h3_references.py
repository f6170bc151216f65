"""Seconds and memory of what references add: one evaluation of a full ref2va sequence, and encoding and decoding clips.

    PYTHONPATH=src python -m benchmarks.h3_references --output result.json

Random weights of the released sizes, drawn on the device. The sequence is the specification's example: a picture of
2048x3424, a clip of 1344x768 and 124 frames with its sound, a recording of 3 s, and a target of 1344x768 and 124 frames. The VAE
decodes 209 frames in the mixed layout and encodes 124 frames and a reference picture in float32 without TF32. Where
torchaudio and torchvision are installed, our resampling and clip patches are compared with theirs. `--config tiny` runs
anywhere in seconds, as a test of this script.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.h3_step import RELEASED, TINY, Device, build, capability_of, random_weights
from torch import Tensor, nn

from omnireel.attention import AttentionConfig, select_backend
from omnireel.models.minimax_h3.audio_autoencoder import AudioAutoencoder, AudioVaeConfig, fold_weight_norm
from omnireel.models.minimax_h3.packing import ClipReference, PictureReference, SoundReference, Target, pack
from omnireel.models.minimax_h3.references import resample
from omnireel.models.minimax_h3.schedule import FlowSchedule, row_times
from omnireel.models.minimax_h3.video_autoencoder import VideoAutoencoder, VideoVaeConfig, stored_dtype
from omnireel.models.minimax_h3.vision import CLIP_RULES, clip_patches
from omnireel.platforms import find_platform
from omnireel.request import MediaInput, MediaKind

TINY_VIDEO = VideoVaeConfig(
    block_out_channels=(8, 8, 8, 8, 8, 16), layers_per_block=1, norm_num_groups=8, decoder_num_layers=2,
    decoder_num_attention_heads=2, decoder_ffn_mult=2,
)  # fmt: skip
TINY_AUDIO = AudioVaeConfig(encoder_dim=4, latent_dim=64, num_attention_heads=2, decoder_dim=128)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", choices=("released", "tiny"), default="released")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    device = Device(kind="cuda" if torch.cuda.is_available() else "cpu")
    result: dict[str, Any] = {"environment": environment(arguments, device), "cases": [], "agreement": agreement()}
    with torch.inference_mode():
        for case in (vae_cases, sound_case, step_case):
            for row in case(arguments, device):
                print(json.dumps(row), flush=True)
                result["cases"].append(row)
                arguments.output.write_text(json.dumps(result, indent=1) + "\n")
            if device.kind == "cuda":
                torch.cuda.empty_cache()
    print(json.dumps(result["agreement"]))


def environment(arguments: argparse.Namespace, device: Device) -> dict[str, Any]:
    """Hardware, versions and command."""
    card = torch.cuda.get_device_name() if device.kind == "cuda" else "cpu"
    command = ["h3_references.py", "--config", arguments.config, "--steps", str(arguments.steps)]
    return {"command": command, "hardware": card, "torch": torch.__version__, "cuda": torch.version.cuda}


def timed(device: Device, name: str, call: Any, times: int, **more: Any) -> dict[str, Any]:
    """One row: warm-up, then `times` calls."""
    with device.memory() as memory:
        call()
        device.wait()
        seconds = [device.seconds(call) for _ in range(times)]
    median = statistics.median(seconds)
    spread = (max(seconds) - min(seconds)) / median
    return {"case": name, "seconds": seconds, "median_seconds": median, "spread": spread, "memory": memory, **more}


def filled(module: nn.Module, device: str, dtype: torch.dtype) -> Any:
    """Random weights in the layout of `dtype`, drawn on the device; layer scales and norms near what they are in training."""
    rng = torch.Generator(device).manual_seed(0)
    for name, empty in [*module.named_parameters(), *module.named_buffers()]:
        tensor = torch.empty(empty.shape, dtype=stored_dtype(name, dtype), device=device)
        centre = 1.0 if empty.ndim == 1 and name.endswith("weight") else 0.0
        width = 0.02 if empty.ndim < 2 else 1.0 / max(1, empty[0].numel()) ** 0.5
        owner = module.get_submodule(name.rpartition(".")[0])
        leaf = name.rpartition(".")[2]
        tensor.normal_(centre, width, generator=rng)
        if leaf in owner._parameters:
            owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
        else:
            owner._buffers[leaf] = tensor
    return module


def video_vae(
    arguments: argparse.Namespace, device: Device, dtype: torch.dtype, preference: Sequence[str] | None = None
) -> VideoAutoencoder:
    """With random weights; preference: of attention backends, else the device's own."""
    config = VideoVaeConfig() if arguments.config == "released" else TINY_VIDEO
    backend = select_backend(
        AttentionConfig(), role="vae", category="self", head_dim=config.decoder_attention_head_dim,
        platform_name=device.kind, capability=capability_of(device.kind), dtype=dtype, is_mask_free=True,
        preference=find_platform(device.kind).attention_preference if preference is None else tuple(preference),
    )  # fmt: skip
    with torch.device("meta"):
        module = VideoAutoencoder(config, backend=backend)
    made: VideoAutoencoder = filled(module, device.kind, dtype)
    return made


def to_host(vae: VideoAutoencoder, z: Tensor, tile_batch: int) -> None:
    """Decodes a clip and brings it to the host as bytes, a piece at a time."""
    for piece in vae.decode_clips(z, tile_batch=tile_batch):
        piece.to(torch.uint8).cpu()


def vae_cases(arguments: argparse.Namespace, device: Device) -> Any:
    is_released = arguments.config == "released"
    height, width, latents, frames = (768, 1344, 62, 124) if is_released else (32, 64, 7, 22)
    vae = video_vae(arguments, device, torch.bfloat16)
    z = torch.randn(1, 24, latents, height // 16, width // 16, device=device.kind)
    for batch in (1, 4, 14):
        decode = partial(to_host, vae, z, batch)
        yield timed(device, f"decode {width}x{height}, {latents} latents, mixed, {batch} tiles at once", decode, 1)
    one = torch.cat(list(vae.decode_clips(z[:, :, :7], tile_batch=1)), 2).float()
    many = torch.cat(list(vae.decode_clips(z[:, :, :7], tile_batch=14)), 2).float()
    difference = ((one - many).norm() / one.norm()).item()
    yield {"case": "relative difference of 14 tiles at once against one by one", "value": difference}
    del vae
    torch.backends.cudnn.allow_tf32 = False
    encoder = video_vae(arguments, device, torch.float32)
    clip = torch.randn(1, 3, frames, height, width, device=device.kind)
    yield timed(device, f"encode {width}x{height}, {frames} frames, float32", partial(encoder.encode_moments, clip), 1)
    edge = (2048, 3648) if is_released else (64, 96)
    picture = torch.randn(1, 3, 1, *edge, device=device.kind)
    yield timed(
        device, f"encode a picture of {edge[1]}x{edge[0]}, float32", partial(encoder.encode_moments, picture), 1
    )


def sound_case(arguments: argparse.Namespace, device: Device) -> Any:
    with torch.device("meta"):
        module = AudioAutoencoder(AudioVaeConfig() if arguments.config == "released" else TINY_AUDIO)
    vae: AudioAutoencoder = filled(module, device.kind, torch.float32)
    fold_weight_norm(vae)
    seconds = 209 / 24 if arguments.config == "released" else 0.5
    z = torch.randn(2, 32, round(seconds * 40), device=device.kind)
    yield timed(device, f"decode {seconds:.2f} s of stereo sound", partial(vae.decode, z), 3)
    wave = 0.1 * torch.randn(2, round(seconds * 32_000), device=device.kind)
    yield timed(device, f"encode {seconds:.2f} s of stereo sound", partial(vae.encode, wave), 3)


def step_case(arguments: argparse.Namespace, device: Device) -> Any:
    is_released = arguments.config == "released"
    config, dtype = (RELEASED, torch.bfloat16) if is_released else (TINY, torch.bfloat16)
    scale = 1 if is_released else 8
    target = Target(
        latent_frames=37,
        latent_height=48 // scale,
        latent_width=96 // scale - (12 if is_released else 0),
        sound_latents=207,
    )
    conditions = (
        PictureReference(latent_height=128 // scale, latent_width=214 // scale // 2 * 2),
        ClipReference(latent_frames=37, latent_height=48 // scale, latent_width=target.latent_width, sound_latents=200),
        SoundReference(num_latents=120),
    )
    layout = pack(torch.ones(50, dtype=torch.int64), target, patch_size=config.patch_size, conditions=conditions)
    backend = "CUDNN_ATTN" if device.kind == "cuda" else "TORCH_SDPA"
    model = build(config, device.kind, backend, dtype, random_weights(config, device.kind))
    video, audio = FlowSchedule.build(50, 12.0), FlowSchedule.build(50, 3.0)
    times = row_times(
        layout.num_rows, video_time=video.timesteps[10], audio_time=audio.timesteps[10],
        visual_condition_rows=layout.video_indices[: layout.num_condition_video_rows],
        audio_condition_rows=layout.audio_indices[: layout.num_condition_audio_rows],
        audio_rows=layout.audio_indices[layout.num_condition_audio_rows :],
    )  # fmt: skip
    to = partial(Tensor.to, device=device.kind)
    text = model.refine_text(torch.randn(1, 50, config.text_dim, device=device.kind, dtype=dtype))
    rows = torch.randn(1, len(layout.video_indices), config.video_row_dim, device=device.kind)
    sound = torch.randn(1, len(layout.audio_indices), config.audio_in_channels, device=device.kind)
    rotary = model.rotary(to(layout.position_ids), text.dtype)
    indices = {name: to(vars_of(layout, name)) for name in ("video_indices", "audio_indices", "text_indices")}

    def step() -> None:
        outputs = model(
            rows, sound, text, timestep_M=to(times.timesteps), timestep_indices_S=times.indices,
            token_tags_S=layout.token_tags, rotary=rotary, **indices,
        )  # fmt: skip
        assert all(bool(torch.isfinite(output).all()) for output in outputs)

    yield timed(
        device, "one ref2va evaluation", step, arguments.steps, rows=layout.num_rows, attention=backend,
        distinct_times=len(times.timesteps),
    )  # fmt: skip


def vars_of(layout: Any, name: str) -> Tensor:
    """A field of a slotted dataclass by its name."""
    value: Tensor = {
        "video_indices": layout.video_indices,
        "audio_indices": layout.audio_indices,
        "text_indices": layout.text_indices,
    }[name]
    return value


def agreement() -> dict[str, Any]:
    """How far our resampling and clip patches are from torchaudio's and torchvision's, where those are installed."""
    found: dict[str, Any] = {}
    wave = torch.randn(2, 50_000)
    try:
        from torchaudio.transforms import Resample  # type: ignore[import-not-found]

        found["resample"] = {
            str(rate): (resample(wave, rate, 32_000) - Resample(rate, 32_000)(wave)).abs().max().item()
            for rate in (8_000, 22_050, 44_100, 48_000, 96_000)
        }
    except ImportError as error:
        found["resample"] = str(error)
    try:
        from transformers import Qwen3VLVideoProcessor

        rng = np.random.default_rng(0)
        frames = rng.integers(0, 256, (30, 300, 500, 3), dtype=np.uint8)
        public = Qwen3VLVideoProcessor(
            size={"shortest_edge": CLIP_RULES.min_pixels, "longest_edge": 30 * 256 * 448},
            patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3,
        )  # fmt: skip
        theirs = public(videos=[frames], do_sample_frames=False, return_tensors="pt")
        item = MediaInput(kind=MediaKind.VIDEO, role="reference", frames=np.repeat(frames, 12, axis=0), fps=24.0)
        ours = clip_patches((item,), replace(CLIP_RULES, max_pixels=30 * 256 * 448))
        assert ours is not None
        difference = (ours.patches - theirs["pixel_values_videos"]).abs()
        found["clip_patches"] = {
            "same_grid": torch.equal(ours.grids, theirs["video_grid_thw"]), "max": difference.max().item(),
            "mean": difference.mean().item(), "one_level_is": 2 / 255,
        }  # fmt: skip
    except (ImportError, ValueError, RuntimeError) as error:
        found["clip_patches"] = f"{type(error).__name__}: {error}"[:200]
    return found


if __name__ == "__main__":
    main()
