"""Scenes as the latents that the DiT is trained on, encoded once and kept on the device.

The autoencoders are used as the served model uses them: clips of 17 frames by themselves, conditions drawn from their
posterior with the noise of seed 42, sound by its mean. Letters: B scenes, T frames, H height, W width, C channels.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tools.mini_h3.data import (
    BACKGROUNDS,
    COLOURS,
    HEIGHT,
    NUM_FRAMES,
    PITCHES_HZ,
    SHAPES,
    TONE_LEVEL,
    TURNING_SHAPES,
    WIDTH,
    Scene,
    draw_scene,
)
from tools.mini_h3.paint import SAMPLES_PER_LATENT, Painter, Scenes
from torch import Tensor

from omnireel.models.minimax_h3.limits import aligned_frames, latent_frames, sound_latents_of
from omnireel.models.minimax_h3.video_vae import ENCODE_SEED, PIXEL_MEAN, PIXEL_STD
from tools.mini_h3 import architecture

CLIP_FRAMES, TAIL_FRAMES = 17, 5
SEQUEL_FRAMES = (39, NUM_FRAMES)
"""How long the clips are that are gone on with."""
RECORDING_LATENTS = 178
AT_ONCE = 16
"""Scenes that are encoded side by side."""


@dataclass(slots=True, kw_only=True, eq=False)
class Pool:
    """Equal things side by side: tensors with a row each in the order of `scenes`, by name."""

    scenes: list[Scene]
    tensors: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, **parts: Tensor) -> None:
        """More rows of each tensor."""
        for name, tensor in parts.items():
            self.tensors.setdefault(name, []).append(tensor)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name][0]

    def close(self) -> None:
        """Puts the parts of each tensor together."""
        for name, parts in self.tensors.items():
            self.tensors[name] = [torch.cat(parts)]


class Encoders:
    """The trained autoencoders and the vision tower, on a device, and statistics of what they give."""

    def __init__(
        self, video_state: dict[str, Any], audio_state: dict[str, Any], vision: Any, device: torch.device
    ) -> None:
        from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio

        warnings.simplefilter("ignore", FutureWarning)
        self.device = device
        self.painter = Painter(device)
        self._video: Any = AutoencoderKLMiniMaxH3(**architecture.VIDEO_VAE)
        self._video.load_state_dict(video_state)
        self._audio: Any = AutoencoderKLMiniMaxH3Audio(**architecture.AUDIO_VAE)
        self._audio.load_state_dict(audio_state)
        self._video.to(device).eval()
        if device.type == "cuda":
            # Convolutions of few channels at full resolution are what takes time.
            self._video.encoder.to(memory_format=torch.channels_last_3d)
            torch.backends.cudnn.benchmark = True
        self._audio.to(device).eval()
        self._vision = vision
        self._mean = torch.tensor(PIXEL_MEAN, device=device).view(1, 3, 1, 1, 1)
        self._std = torch.tensor(PIXEL_STD, device=device).view(1, 3, 1, 1, 1)
        self.video_mean = torch.zeros(24, device=device)
        self.video_std = torch.ones(24, device=device)
        self.audio_mean = torch.zeros(32, device=device)
        self.audio_std = torch.ones(32, device=device)

    @torch.no_grad()
    def measure(self) -> None:
        """Means and spreads of latents over 64 scenes: of the picture's posterior, of the sound's mean."""
        scenes = Scenes.of([draw_scene(10**9 + k) for k in range(64)])
        drawn, heard = [], []
        for first in range(0, 64, 8):
            part = scenes.part(first, 8)
            mean, spread = self.moments(self.frames(part, torch.arange(NUM_FRAMES).expand(8, -1)))
            drawn.append((mean + spread * torch.randn_like(mean)).transpose(0, 1).flatten(1))
            heard.append(self.sound(self.painter.waves(part)).permute(2, 0, 1, 3).flatten(1))
        self.video_mean, self.video_std = torch.cat(drawn, 1).mean(1), torch.cat(drawn, 1).std(1)
        # A channel that never moves must not be blown up.
        sounds = torch.cat(heard, 1)
        self.audio_mean, self.audio_std = sounds.mean(1), sounds.std(1).clamp(min=0.05 * sounds.std())

    def frames(self, scenes: Scenes, frames: Tensor) -> Tensor:
        """float32 [B,3,T,H,W] normalised."""
        pictures, _ = self.painter.pictures(scenes, frames)
        return ((pictures.permute(0, 4, 1, 2, 3) - self._mean) / self._std).contiguous()

    def moments(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and spread [B,24,Tl,H/16,W/16] of pixels [B,3,T,H,W]; T is 1 or 17n + 5."""
        batch, _, frames, _, _ = pixels.shape
        whole = frames // CLIP_FRAMES
        parts = []
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            if whole:
                clips = (
                    pixels[:, :, : whole * CLIP_FRAMES].unflatten(2, (whole, CLIP_FRAMES)).transpose(1, 2).flatten(0, 1)
                )
                made = self._encoded(clips.contiguous())
                parts.append(made.unflatten(0, (batch, whole)).transpose(1, 2).flatten(2, 3))
            # Behind the last frame the clip is filled up with it, which no causal convolution sees before.
            parts.append(self._encoded(pixels[:, :, whole * CLIP_FRAMES :].contiguous()))
        mean, log_variance = torch.cat(parts, dim=2).float().chunk(2, dim=1)
        return mean, torch.exp(0.5 * log_variance.clamp(-30, 20))

    def _encoded(self, pixels: Tensor) -> Tensor:
        if pixels.is_cuda:
            pixels = pixels.contiguous(memory_format=torch.channels_last_3d)
        made: Tensor = self._video.quant_conv(self._video.encoder(pixels))
        return made

    def target(self, pixels: Tensor) -> Tensor:
        """Rows [B,N,96] of clips that are to be made."""
        return self._rows(self.moments(pixels)[0])

    def condition(self, pixels: Tensor) -> Tensor:
        """Rows [B,N,96] of pictures and clips that are given."""
        mean, spread = self.moments(pixels)
        generator = torch.Generator().manual_seed(ENCODE_SEED)
        noise = torch.randn(1, *mean.shape[1:], generator=generator).to(self.device)
        return self._rows(mean + spread * noise)

    def _rows(self, latents: Tensor) -> Tensor:
        normal = (latents - self.video_mean.view(1, -1, 1, 1, 1)) / self.video_std.view(1, -1, 1, 1, 1)
        batch, channels, frames, height, width = normal.shape
        split = normal.view(batch, channels, frames, height // 2, 2, width // 2, 2)
        return split.permute(0, 2, 3, 5, 1, 4, 6).reshape(batch, -1, 4 * channels).to(torch.bfloat16)

    @torch.no_grad()
    def sound(self, waves: Tensor, num_latents: int | None = None) -> Tensor:
        """Latents [B,2,32,T] of waves [B,2,N], not normalised."""
        batch, _, samples = waves.shape
        flat = torch.nn.functional.pad(waves, (0, -samples % SAMPLES_PER_LATENT)).flatten(0, 1)[:, None]
        states = self._audio.pre_block(self._audio.encoder(flat).transpose(1, 2)).transpose(1, 2)
        made: Tensor = self._audio.mean_proj(states).unflatten(0, (batch, 2))
        return made[..., :num_latents]

    def sound_rows(self, waves: Tensor, num_latents: int | None = None) -> Tensor:
        """Normalised [B,2,T,32]."""
        normal = (self.sound(waves, num_latents) - self.audio_mean.view(-1, 1)) / self.audio_std.view(-1, 1)
        return normal.transpose(2, 3).to(torch.bfloat16)

    def seen(self, pixels: Tensor) -> Tensor:
        """The vision tower's tokens [B,n,C] of pairs of frames [B,3,2,H,W], or of pictures [B,3,1,H,W]."""
        unit = (pixels * self._std + self._mean - 0.5) / 0.5
        pair = unit.expand(-1, -1, 2, -1, -1) if unit.shape[2] == 1 else unit
        batch, _, _, height, width = pair.shape
        rows, columns = height // 16, width // 16
        split = pair.reshape(batch, 3, 2, rows // 2, 2, 16, columns // 2, 2, 16)
        patches = split.permute(0, 3, 6, 4, 7, 1, 2, 5, 8).reshape(batch * rows * columns, -1)
        grid = torch.tensor([[1, rows, columns]] * batch, device=self.device)
        made: Tensor = self._vision(patches, grid_thw=grid).pooler_output
        return made.view(batch, rows * columns // 4, -1).to(torch.bfloat16)


def _scenes(rng: np.random.Generator, count: int, num_frames: int, *, other_pitch: bool = False) -> list[Scene]:
    """Scenes that training may see."""
    from dataclasses import replace

    found: list[Scene] = []
    while len(found) < count:
        scene = draw_scene(int(rng.integers(2**62)), num_frames)
        if not scene.is_held_out:
            found.append(replace(scene, pitch=str(rng.choice(list(COLOURS)))) if other_pitch else scene)
    return found


@torch.no_grad()
def clip_pool(encoders: Encoders, rng: np.random.Generator, count: int, *, other_pitch: bool = False) -> Pool:
    """video [768,96], audio [2,178,32], key [2,24,96] and key_seen [2,24,C] of first and last frame."""
    pool = Pool(scenes=_scenes(rng, count, NUM_FRAMES, other_pitch=other_pitch))
    every = torch.arange(NUM_FRAMES)
    for first in range(0, count, AT_ONCE):
        part = Scenes.of(pool.scenes[first : first + AT_ONCE])
        pixels = encoders.frames(part, every.expand(len(part), -1))
        ends = pixels[:, :, [0, -1]].transpose(1, 2).flatten(0, 1)[:, :, None]
        pool.add(
            video=encoders.target(pixels),
            audio=encoders.sound_rows(encoders.painter.waves(part), sound_latents_of(NUM_FRAMES)),
            key=encoders.condition(ends).unflatten(0, (-1, 2)),
            key_seen=encoders.seen(ends).unflatten(0, (-1, 2)),
        )
    pool.close()
    return pool


@torch.no_grad()
def sequel_pool(encoders: Encoders, rng: np.random.Generator, count: int, num_given: int) -> Pool:
    """Clips with what comes before them: given [n,96], given_audio [2,T,32], given_seen [pairs,24,C], video, audio."""
    pool = Pool(scenes=_scenes(rng, count, num_given + NUM_FRAMES))
    shown = torch.arange(0, num_given, 12)
    shown = torch.cat([shown, shown[-1:]]) if len(shown) % 2 else shown
    kept = aligned_frames(num_given)
    for first in range(0, count, AT_ONCE // 2):
        part = Scenes.of(pool.scenes[first : first + AT_ONCE // 2])
        pixels = encoders.frames(part, torch.arange(num_given + NUM_FRAMES).expand(len(part), -1))
        waves = encoders.painter.waves(part)
        cut = round(num_given / 24 * 32_000)
        pairs = pixels[:, :, shown].unflatten(2, (-1, 2)).transpose(1, 2).flatten(0, 1)
        pool.add(
            given=encoders.condition(pixels[:, :, :kept]),
            given_audio=encoders.sound_rows(waves[..., :cut]),
            given_seen=encoders.seen(pairs).unflatten(0, (len(part), -1)),
            video=encoders.target(pixels[:, :, num_given:]),
            audio=encoders.sound_rows(waves[..., cut:], sound_latents_of(NUM_FRAMES)),
        )
    pool.close()
    return pool


@torch.no_grad()
def picture_pool(encoders: Encoders, rng: np.random.Generator, each: int, *, width: int) -> Pool:
    """Pictures of every colour and shape, `each` of them: rows [n,96] and seen [n,C]. width: 192, or 128 cut around the shape."""
    scenes = [_portrait(rng, colour, shape) for _ in range(each) for colour in COLOURS for shape in SHAPES]
    pool = Pool(scenes=scenes)
    for first in range(0, len(scenes), 64):
        part = Scenes.of(scenes[first : first + 64])
        pixels = encoders.frames(part, torch.zeros(len(part), 1, dtype=torch.long))
        if width < WIDTH:
            left = (part.centre[:, 0, 0] - width / 2).round().clamp(0, WIDTH - width).long().tolist()
            pixels = torch.stack([p[..., at : at + width] for p, at in zip(pixels, left, strict=True)])
        pool.add(rows=encoders.condition(pixels), seen=encoders.seen(pixels))
    pool.close()
    return pool


def _portrait(rng: np.random.Generator, colour: str, shape: str) -> Scene:
    radius = float(rng.uniform(13, 42))
    turn = 0.9 if shape in TURNING_SHAPES else 0.0
    return Scene(
        colour=colour, shape=shape, motion="right", background=str(rng.choice(BACKGROUNDS)), pitch=colour, speed=0.0,
        x=float(rng.uniform(radius + 6, WIDTH - radius - 6)), y=float(rng.uniform(radius + 6, HEIGHT - radius - 6)),
        radius=radius, angle=float(rng.uniform(-turn, turn)), seed=0, num_frames=1,
    )  # fmt: skip


@torch.no_grad()
def recording_pool(encoders: Encoders, rng: np.random.Generator, each: int) -> Pool:
    """Steady tones of every pitch, `each` of them: rows [2,178,32]. A scene tells the pitch; half do not start at a whole period."""
    names = [name for _ in range(each) for name in COLOURS]
    pool = Pool(scenes=[_portrait(rng, name, str(rng.choice(SHAPES))) for name in names])
    samples = RECORDING_LATENTS * SAMPLES_PER_LATENT
    seconds = torch.arange(samples, device=encoders.device, dtype=torch.float64) / 32_000
    for first in range(0, len(names), 64):
        chunk = names[first : first + 64]
        pitch = torch.tensor([PITCHES_HZ[name] for name in chunk], device=encoders.device, dtype=torch.float64)
        late = torch.tensor(rng.random(len(chunk)) * (rng.random(len(chunk)) < 0.5), device=encoders.device) / 40
        shapes = torch.tensor(rng.integers(0, len(SHAPES), len(chunk)), device=encoders.device)
        levels = encoders.painter._harmonics[shapes]
        wave = torch.zeros(len(chunk), samples, device=encoders.device)
        for multiple in range(1, 6):
            phase = torch.remainder(multiple * pitch[:, None] * (seconds + late[:, None]), 1.0).float()
            wave += levels[:, multiple - 1, None] * torch.sin(2 * torch.pi * phase)
        loud = torch.tensor(rng.uniform(0.4, 1.2, len(chunk)), device=encoders.device).float()[:, None]
        turn = torch.tensor(rng.uniform(0.2, 1.37, len(chunk)), device=encoders.device).float()[:, None]
        ears = torch.stack([turn.cos() * wave * loud, turn.sin() * wave * loud], dim=1) * TONE_LEVEL
        pool.add(rows=encoders.sound_rows(ears.clamp(-0.99, 0.99), RECORDING_LATENTS))
    pool.close()
    return pool


def geometry(num_given: int) -> tuple[int, int]:
    """Latent frames and sound latents of a clip that is given."""
    return latent_frames(aligned_frames(num_given)), -(-round(num_given / 24 * 32_000) // SAMPLES_PER_LATENT)


def by_look(scenes: Sequence[Scene]) -> dict[tuple[str, str], list[int]]:
    """Places of each colour and shape."""
    found: dict[tuple[str, str], list[int]] = {}
    for place, scene in enumerate(scenes):
        found.setdefault((scene.colour, scene.shape), []).append(place)
    return found
