"""Trains the two autoencoders of mini-h3 on scenes drawn as they are needed.

    python tools/mini_h3/train_vaes.py video --seconds 420 --output STATE.pt
    python tools/mini_h3/train_vaes.py decoder --seconds 120 --output STATE.pt
    python tools/mini_h3/train_vaes.py audio --seconds 420 --output STATE.pt

`decoder` goes on with the decoder of a video state alone: latents stay what a DiT has learned. A state that exists is gone on with, so that several short runs make one long one. Losses go to a log beside the state.
Letters: B batch, C channels, T frames, H height, W width, N samples.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.mini_h3.architecture import AUDIO_VAE, VIDEO_VAE
from tools.mini_h3.data import HEIGHT, NUM_FRAMES, SAMPLE_RATE_HZ, WIDTH, Scene, draw_scene
from tools.mini_h3.paint import SAMPLES_PER_LATENT, Painter, Scenes

from tools.mini_h3 import audio_start

PIXEL_MEAN, PIXEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_FRAMES, TAIL_FRAMES, LEAD_FRAMES = 17, 5, 3
NEAR_WEIGHT = 12.0
"""How much more a pixel on or near the shape counts than one of the background."""
BANDS_HZ = (0, 500, 1000, 2000, 4000, 16000)
WILD_SHARE = 0.15
"""Scenes with colours that no caption names, so that other pictures than ours survive as well."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("medium", choices=tuple(TRAINERS))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of training in this run")
    parser.add_argument("--total-seconds", type=float, help="of all runs together, for the learning rate's fall")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    trainer = TRAINERS[arguments.medium](_device())
    batch = arguments.batch or trainer.BATCH
    rate = arguments.learning_rate or trainer.LEARNING_RATE
    run(trainer, arguments.output, batch=batch, peak_rate=rate, seconds=arguments.seconds,
        total_seconds=arguments.total_seconds or arguments.seconds, compiled=arguments.compile)  # fmt: skip


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class VideoTrainer:
    """Frames through the video VAE: one clip of 17 frames and the 5 of the next that are decoded with it."""

    BATCH, LEARNING_RATE = 32, 1.2e-3

    def __init__(self, device: torch.device) -> None:
        from diffusers import AutoencoderKLMiniMaxH3

        torch.manual_seed(0)
        self.model: Any = AutoencoderKLMiniMaxH3(**VIDEO_VAE).to(device)
        with torch.no_grad():
            # They start at zero, which leaves a decoder without blocks for long.
            for block in self.model.decoder.transformer_blocks:
                block.scale1.fill_(0.5)
                block.scale2.fill_(0.5)
        if device.type == "cuda":
            # The encoder's few channels at full resolution are what takes time.
            self.model.encoder.to(memory_format=torch.channels_last_3d)
        self._device, self._painter = device, Painter(device)
        self._mean = torch.tensor(PIXEL_MEAN, device=device).view(1, 3, 1, 1, 1)
        self._std = torch.tensor(PIXEL_STD, device=device).view(1, 3, 1, 1, 1)
        self.encode: Callable[[Tensor], Tensor] = lambda x: self.model.quant_conv(self.model.encoder(x))
        self.decode: Callable[[Tensor], Tensor] = lambda z: self.model.decoder(self.model.post_quant_conv(z))

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[Scenes, Tensor]:
        """Scenes and which of their frames are looked at."""
        scenes = Scenes.of([draw_scene(int(rng.integers(2**62))) for _ in range(batch)])
        first = rng.integers(0, NUM_FRAMES - CLIP_FRAMES - TAIL_FRAMES + 1, (batch, 1))
        return scenes, torch.from_numpy(first + np.arange(CLIP_FRAMES + TAIL_FRAMES))

    def looks(self, scenes: Scenes) -> tuple[Tensor, Tensor]:
        """A colour for each shape [B,3] and the four corners of a ground that no caption names [B,3,2,2], else below zero."""
        wild = torch.rand(len(scenes), device=self._device) < WILD_SHARE
        random = torch.rand(len(scenes), 3, device=self._device)
        colour = torch.where(wild[:, None], random, scenes.colour.to(self._device))
        corners = torch.rand(len(scenes), 3, 2, 2, device=self._device)
        return colour, torch.where(wild[:, None, None, None], corners, torch.full_like(corners, -1))

    def painted(self, scenes: Scenes, frames: Tensor, colour: Tensor, corners: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised [B,3,T,H,W] and the weight of each pixel [B,1,T,H,W]."""
        blend = F.interpolate(corners, (HEIGHT, WIDTH), mode="bilinear", align_corners=True).permute(0, 2, 3, 1)
        own = self._painter._grounds[scenes.ground.to(self._device)]
        ground = torch.where(corners[:, :1, :1, :1].permute(0, 2, 3, 1) >= 0, blend, own)
        picture, near = self._painter.pictures(scenes, frames, colour=colour, ground=ground)
        pixels = (picture.permute(0, 4, 1, 2, 3) - self._mean) / self._std
        return pixels.contiguous(), 1 + (NEAR_WEIGHT - 1) * near[:, None].float()

    def loss(self, drawn: tuple[Scenes, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one batch and what is logged of it."""
        with torch.no_grad():
            pixels, weight = self.painted(*drawn, *self.looks(drawn[0]))
            if pixels.is_cuda:
                pixels = pixels.contiguous(memory_format=torch.channels_last_3d)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            moments = torch.cat(
                [self.encode(pixels[:, :, :CLIP_FRAMES]), self.encode(pixels[:, :, CLIP_FRAMES:])], dim=2
            )
            mean, log_variance = moments.float().chunk(2, dim=1)
            log_variance = log_variance.clamp(-30, 20)
            latents = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
            made = self.decode(latents).float()
        close, psnr = self.distance(made, pixels, weight)
        spread = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).mean()
        return close + 2e-4 * spread, {"close": close, "kl": spread, "psnr_db": psnr, "latent_std": mean.std()}

    def distance(self, made: Tensor, pixels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """What the decoder's frames lack, and their signal to noise; frames that it makes ahead of a clip are not looked at."""
        head = LEAD_FRAMES + CLIP_FRAMES
        made = torch.cat([made[:, :, LEAD_FRAMES:head], made[:, :, head + LEAD_FRAMES :]], dim=2)
        error = (made - pixels) * self._std
        close = (weight * (error.abs() + 4 * error**2)).sum() / (3 * weight.sum())
        squared = (made * self._std + self._mean).clamp(0, 1) - (pixels * self._std + self._mean)
        return close, -10 * torch.log10((squared**2).mean())

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        """Signal to noise of the mean's reconstruction of 64 scenes that training does not draw, whole and near the shape."""
        scenes = Scenes.of(_held_out_scenes(64))
        frames = torch.arange(CLIP_FRAMES + TAIL_FRAMES)
        squares = torch.zeros(2, 2, dtype=torch.float64)
        for first in range(0, len(scenes), 8):
            part = scenes.part(first, 8)
            picture, near = self._painter.pictures(part, frames.expand(len(part), -1))
            pixels = (picture.permute(0, 4, 1, 2, 3) - self._mean) / self._std
            parts = [self.encode(pixels[:, :, :CLIP_FRAMES]), self.encode(pixels[:, :, CLIP_FRAMES:])]
            made = self.decode(torch.cat(parts, dim=2).float().chunk(2, dim=1)[0]).float()
            head = LEAD_FRAMES + CLIP_FRAMES
            made = torch.cat([made[:, :, LEAD_FRAMES:head], made[:, :, head + LEAD_FRAMES :]], dim=2)
            error = ((made * self._std + self._mean).clamp(0, 1) - picture.permute(0, 4, 1, 2, 3)) ** 2
            for row, mask in enumerate((torch.ones_like(near), near)):
                weight = mask[:, None].expand_as(error)
                squares[row] += torch.stack([(error * weight).sum(), weight.sum()]).double().cpu()
        whole, near_shape = (-10 * torch.log10(squares[:, 0] / squares[:, 1])).tolist()
        return {"psnr_db": round(whole, 2), "psnr_near_shape_db": round(near_shape, 2)}


class DecoderTrainer(VideoTrainer):
    """The video decoder alone, on latents that were encoded once."""

    BATCH, LEARNING_RATE = 24, 8.0e-4
    CACHED = 4096

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.model.encoder.requires_grad_(False)
        self.model.quant_conv.requires_grad_(False)
        self._cache: list[tuple[Scenes, Tensor, Tensor, Tensor, Tensor]] = []

    @torch.no_grad()
    def _fill(self, rng: np.random.Generator, each: int) -> None:
        for _ in range(self.CACHED // each):
            scenes, frames = super().draw(rng, each)
            looks = self.looks(scenes)
            pixels, _ = self.painted(scenes, frames, *looks)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
                parts = [self.encode(pixels[:, :, :CLIP_FRAMES]), self.encode(pixels[:, :, CLIP_FRAMES:])]
            self._cache.append((scenes, frames, *looks, torch.cat(parts, dim=2).float()))

    def draw(self, rng: np.random.Generator, batch: int) -> Any:
        """Which of the batches that are kept."""
        return int(rng.integers(2**31))

    def loss(self, drawn: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one batch and what is logged of it."""
        if not self._cache:
            self._fill(np.random.default_rng(drawn), self.BATCH)
        scenes, frames, colour, ground, moments = self._cache[drawn % len(self._cache)]
        with torch.no_grad():
            pixels, weight = self.painted(scenes, frames, colour, ground)
            mean, log_variance = moments.chunk(2, dim=1)
            latents = mean + torch.exp(0.5 * log_variance.clamp(-30, 20)) * torch.randn_like(mean)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            made = self.decode(latents).float()
        close, psnr = self.distance(made, pixels, weight)
        return close, {"close": close, "psnr_db": psnr}


class AudioTrainer:
    """Waves through the audio VAE, one ear at a time."""

    BATCH, LEARNING_RATE = 48, 5.0e-4
    LATENTS = 32
    LATE_SHARE, STRANGE_SHARE = 0.15, 0.1
    """Pieces that begin between latents, and pitches between ours: recordings that we do not know."""

    def __init__(self, device: torch.device) -> None:
        from diffusers import AutoencoderKLMiniMaxH3Audio

        warnings.simplefilter("ignore", FutureWarning)
        torch.manual_seed(0)
        self.model: Any = AutoencoderKLMiniMaxH3Audio(**AUDIO_VAE)
        pieces = Painter(torch.device("cpu")).waves(Scenes.of([draw_scene(10**8 + k) for k in range(96)]))
        whole = pieces.shape[-1] // SAMPLES_PER_LATENT * SAMPLES_PER_LATENT
        audio_start.start(self.model, pieces[..., :whole].reshape(-1, SAMPLES_PER_LATENT))
        self.model.to(device)
        self._device, self._painter = device, Painter(device)

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[Scenes, Tensor]:
        """Scenes, and for each ear, where a piece begins in samples."""
        scenes = Scenes.of([draw_scene(int(rng.integers(2**62))) for _ in range(batch // 2)])
        last = round(NUM_FRAMES / 24 * SAMPLE_RATE_HZ) - self.LATENTS * SAMPLES_PER_LATENT
        first = rng.integers(0, last // SAMPLES_PER_LATENT, batch) * SAMPLES_PER_LATENT
        first = np.where(rng.random(batch) < self.LATE_SHARE, rng.integers(0, last, batch), first)
        strange = torch.from_numpy(rng.random(batch // 2) < self.STRANGE_SHARE)
        pitch = torch.from_numpy(rng.uniform(120, 1000, batch // 2).astype(np.float32))
        object.__setattr__(scenes, "pitch_hz", torch.where(strange, pitch, scenes.pitch_hz))
        return scenes, torch.from_numpy(first)

    def waves(self, scenes: Scenes, first: Tensor) -> Tensor:
        """[B,1,N]."""
        whole = self._painter.waves(scenes).flatten(0, 1)
        length = self.LATENTS * SAMPLES_PER_LATENT
        return torch.stack([whole[k, at : at + length] for k, at in enumerate(first.tolist())])[:, None]

    def loss(self, drawn: tuple[Scenes, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one batch and what is logged of it."""
        with torch.no_grad():
            wave = self.waves(*drawn)
        model = self.model
        states = model.pre_block(model.encoder(wave).transpose(1, 2)).transpose(1, 2)
        mean, log_std = model.mean_proj(states), model.logs_proj(states).clamp(-12, 4)
        latents = mean + log_std.exp() * torch.randn_like(mean)
        made = model.decoder(model.dec_in_proj(latents))
        close = (made - wave).abs().mean()
        squared = ((made - wave) ** 2).mean()
        spectra = _spectral_distance(made[:, 0], wave[:, 0])
        spread = (0.5 * (mean**2 + (2 * log_std).exp() - 1) - log_std).mean()
        snr = 10 * torch.log10((wave**2).mean() / squared)
        loss = 10 * close + 20 * squared + spectra + 1e-3 * spread
        return loss, {"close": close, "spectra": spectra, "kl": spread, "snr_db": snr, "latent_std": mean.std()}

    @torch.no_grad()
    def held_out(self, count: int = 32) -> dict[str, float]:
        """Signal to noise of scenes that training does not draw, whole and by band."""
        waves = self._painter.waves(Scenes.of(_held_out_scenes(count))).flatten(0, 1)[:, None]
        made = torch.cat(
            [self.model.decode(self.model.encode(part).latent_dist.mode()).sample for part in waves.split(8)]
        )
        made = made[..., : waves.shape[-1]]
        told = {"snr_db": _ratio_db(waves, made - waves)}
        wanted, error = (torch.fft.rfft(x[:, 0].double()) for x in (waves, made - waves))
        hz = torch.fft.rfftfreq(waves.shape[-1], 1 / SAMPLE_RATE_HZ, device=wanted.device)
        for low, high in pairwise(BANDS_HZ):
            band = (hz >= low) & (hz < high)
            told[f"snr_{low}_{high}_hz_db"] = _ratio_db(wanted[:, band].abs(), error[:, band].abs())
        return told


TRAINERS: dict[str, Any] = {"video": VideoTrainer, "decoder": DecoderTrainer, "audio": AudioTrainer}


def _ratio_db(wanted: Tensor, error: Tensor) -> float:
    return round(float(10 * torch.log10((wanted**2).mean() / (error**2).mean())), 2)


def _held_out_scenes(count: int) -> list[Scene]:
    scenes = (draw_scene(2 * 10**9 + k) for k in itertools.count())
    return list(itertools.islice((scene for scene in scenes if scene.is_held_out), count))


def _spectral_distance(made: Tensor, wave: Tensor) -> Tensor:
    total = made.new_zeros(())
    sizes = (2048, 512, 128)
    for size in sizes:
        window = torch.hann_window(size, device=made.device)
        one, other = (
            torch.stft(x, size, size // 4, window=window, return_complex=True).abs() / math.sqrt(size)
            for x in (made, wave)
        )
        total = total + ((one + 1e-3).log() - (other + 1e-3).log()).abs().mean() * 0.1
        total = total + (one - other).abs().mean() / (other.abs().mean() + 1e-4)
    return total / len(sizes)


def batches(draw: Callable[[np.random.Generator, int], Any], batch: int, *, seed: int, workers: int) -> Iterator[Any]:
    """Batches drawn beside the training, by threads: numpy and Python are fast enough for one accelerator."""
    made: queue.Queue[Any] = queue.Queue(2 * workers)

    def work(rng: np.random.Generator) -> None:
        while True:
            made.put(draw(rng, batch))

    for rng in np.random.default_rng(seed).spawn(workers):
        threading.Thread(target=work, args=(rng,), daemon=True).start()
    while True:
        yield made.get()


def run(
    trainer: Any, output: Path, *, batch: int, peak_rate: float, seconds: float, total_seconds: float, compiled: bool
) -> None:
    """Trains for so many seconds, then saves; the rate rises for 200 steps and falls along a cosine over all runs."""
    model: nn.Module = trainer.model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=peak_rate, betas=(0.9, 0.98), weight_decay=1e-3, fused=torch.cuda.is_available()
    )
    averaged = {name: value.detach().clone() for name, value in model.state_dict().items()}
    step, spent = 0, 0.0
    if output.is_file():
        state = torch.load(output, map_location=_device(), weights_only=True)
        model.load_state_dict(state["model"])
        averaged = {name: value.detach().clone() for name, value in model.state_dict().items()}
        step, spent = state["step"], state["spent"]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    loss_of = _compiled(trainer) if compiled else trainer.loss
    source = batches(trainer.draw, batch, seed=step + 1, workers=4)
    first_step, shown = step, 0.0
    # Compiling must not use up the schedule: the clock starts behind the first two steps.
    begin = time.perf_counter()
    log = output.with_suffix(".log.jsonl").open("a")
    while (now := time.perf_counter() - begin) < seconds:
        done = min(1.0, (spent + now) / total_seconds)
        rate = (
            peak_rate * min(1.0, (step - first_step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, told = loss_of(next(source))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step == first_step + 2:
            begin = time.perf_counter()
        if step % 5 == 0:
            _average(averaged, model, min(0.99, step / (step + 100)))
        if now - shown > 10 or step == 1:
            shown = now
            line = {"step": step, "seconds": round(spent + now, 1), "loss": round(float(loss), 5)}
            line |= {name: round(float(value), 4) for name, value in told.items()}
            print(json.dumps(line), flush=True)
            log.write(json.dumps(line) + "\n")
            log.flush()
    # The averaged weights alone travel between runs: the optimizer's moments are soon found again.
    torch.save({"model": averaged, "step": step, "spent": spent + seconds}, output)
    model.load_state_dict(averaged)
    line = {"step": step, "held_out": trainer.held_out()}
    print(json.dumps(line), flush=True)
    log.write(json.dumps(line) + "\n")


def _average(averaged: dict[str, Tensor], model: nn.Module, keep: float) -> None:
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                averaged[name].lerp_(value, 1 - keep)


def _compiled(trainer: Any) -> Callable[[Any], Any]:
    """The trainer's loss with its encoder and decoder compiled, where that works."""
    torch._dynamo.config.suppress_errors = True
    if isinstance(trainer, VideoTrainer):
        trainer.encode, trainer.decode = torch.compile(trainer.encode), torch.compile(trainer.decode)
    else:
        trainer.model.decoder.forward = torch.compile(trainer.model.decoder.forward)
        trainer.model.encoder.forward = torch.compile(trainer.model.encoder.forward)
    loss: Callable[[Any], Any] = trainer.loss
    return loss


if __name__ == "__main__":
    main()
