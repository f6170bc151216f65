"""Draws and plays many scenes at once with torch: what `data.py` makes one at a time, for training on an accelerator.

Letters: B scenes, T frames, H height, W width, N samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tools.mini_h3.data import FPS, HEIGHT, SAMPLE_RATE_HZ, SHAPES, WIDTH, Scene
from torch import Tensor

from tools.mini_h3 import data

SAMPLES_PER_LATENT = 800
LATENTS_PER_SECOND = SAMPLE_RATE_HZ // SAMPLES_PER_LATENT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenes:
    """Scenes of equal length as arrays on the CPU.

    centre [B,T,2], radius, angle and level [B,T]; shape and ground [B] as indices; colour [B,3]; pitch_hz [B]; beats [B];
    hits: pairs of scene and frame.
    """

    centre: Tensor
    radius: Tensor
    angle: Tensor
    level: Tensor
    shape: Tensor
    ground: Tensor
    colour: Tensor
    pitch_hz: Tensor
    beats: Tensor
    hits: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, scenes: Sequence[Scene]) -> Scenes:
        """The scenes' tracks and looks."""
        tracks = [data.track(scene) for scene in scenes]
        radius = np.stack([path.radius for path in tracks])
        resizes = np.array([scene.motion in ("grows", "shrinks") for scene in scenes])[:, None]
        level = np.where(resizes, radius / radius.max(1, keepdims=True), 1.0)
        return cls(
            centre=_tensor([path.centre for path in tracks]),
            radius=_tensor(radius),
            angle=_tensor([path.angle for path in tracks]),
            level=_tensor(level),
            shape=torch.tensor([SHAPES.index(scene.shape) for scene in scenes]),
            ground=torch.tensor([data.BACKGROUNDS.index(scene.background) for scene in scenes]),
            colour=_tensor([data.COLOURS[scene.colour] for scene in scenes]),
            pitch_hz=_tensor([data.PITCHES_HZ[scene.pitch] for scene in scenes]),
            beats=torch.tensor([scene.motion == "spins" for scene in scenes]),
            hits=tuple((k, hit) for k, path in enumerate(tracks) for hit in path.hits),
        )

    def part(self, first: int, count: int) -> Scenes:
        """Scenes `first` and those behind it, at most `count`."""
        kept = range(len(self))[first : first + count]
        tensors = {
            name: getattr(self, name)[first : first + count]
            for name in ("centre", "radius", "angle", "level", "shape", "ground", "colour", "pitch_hz", "beats")
        }
        return Scenes(**tensors, hits=tuple((k - kept.start, hit) for k, hit in self.hits if k in kept))

    def __len__(self) -> int:
        return len(self.radius)

    @property
    def num_frames(self) -> int:
        """T."""
        return self.radius.shape[1]


def _tensor(values: object) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float32))


class Painter:
    """Makes pictures and waves of scenes on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._grounds = _tensor([data.background(name) for name in data.BACKGROUNDS]).to(device)
        self._ys = torch.arange(HEIGHT, device=device, dtype=torch.float32)[:, None]
        self._xs = torch.arange(WIDTH, device=device, dtype=torch.float32)[None, :]
        self._click = _tensor(data.click_wave()).to(device)
        levels = torch.zeros(len(SHAPES), 5)
        for shape, parts in data.HARMONICS.items():
            for multiple, level in parts:
                levels[SHAPES.index(shape), multiple - 1] = level
        self._harmonics = levels.to(device)

    def pictures(
        self, scenes: Scenes, frames: Tensor, *, colour: Tensor | None = None, ground: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """float32 [B,T,H,W,3] in [0,1] in steps of 1/255, and where the shape is or nearly is, bool [B,T,H,W].

        frames: int64 [B,T], which frames of each scene. colour [B,3] and ground [B,H,W,3] replace the scenes' own.
        """
        device, rows = self._device, torch.arange(len(scenes))[:, None]
        centre = scenes.centre[rows, frames].to(device)
        radius = scenes.radius[rows, frames].to(device)[..., None, None]
        angle = scenes.angle[rows, frames].to(device)[..., None, None]
        x = self._xs - centre[..., 0, None, None]
        y = self._ys - centre[..., 1, None, None]
        distance = torch.empty(*frames.shape, HEIGHT, WIDTH, device=device)
        for index, shape in enumerate(SHAPES):
            own = (scenes.shape == index).to(device)
            if bool(own.any()):
                distance[own] = _distance(shape, x[own], y[own], radius[own], angle[own])
        cover = (0.5 - distance).clamp(0, 1)[..., None]
        ground = self._grounds[scenes.ground.to(device)] if ground is None else ground
        colour = scenes.colour.to(device) if colour is None else colour
        picture = ground[:, None] * (1 - cover) + colour[:, None, None, None] * cover
        return (255 * picture).round() / 255, distance < 4.0

    def waves(self, scenes: Scenes) -> Tensor:
        """float32 [B,2,N] of the whole scenes."""
        device = self._device
        samples = round(scenes.num_frames / FPS * SAMPLE_RATE_HZ)
        seconds = torch.arange(samples, device=device, dtype=torch.float64) / SAMPLE_RATE_HZ
        pitch = scenes.pitch_hz.to(device).double()
        tone = torch.zeros(len(scenes), samples, device=device)
        levels = self._harmonics[scenes.shape.to(device)]
        for multiple in range(1, 6):
            phase = torch.remainder(multiple * pitch[:, None] * seconds, 1.0).float()
            tone += levels[:, multiple - 1, None] * torch.sin(2 * torch.pi * phase)
        beat = 0.75 + 0.25 * torch.cos(2 * torch.pi * 1.6 * seconds.float())
        tone *= data.TONE_LEVEL * _between(scenes.level.to(device), seconds)
        tone *= torch.where(scenes.beats.to(device)[:, None], beat, torch.ones_like(beat))
        turn = _between(scenes.centre[..., 0].to(device), seconds) / WIDTH * torch.pi / 2
        wave = torch.stack([turn.cos(), turn.sin()], dim=1) * tone[:, None]
        for scene, hit in scenes.hits:
            first = round(hit / FPS * SAMPLE_RATE_HZ)
            wave[scene, :, first : first + len(self._click)] += self._click[: samples - first]
        return wave.clamp_(-0.99, 0.99)


def _between(values: Tensor, seconds: Tensor) -> Tensor:
    """Values [B,T] at frames as [B,N] at times, along straight lines, and flat behind the last frame."""
    place = (seconds * FPS).clamp(max=values.shape[1] - 1)
    low = place.floor().long()
    share = (place - low).float()
    return values[:, low] * (1 - share) + values[:, (low + 1).clamp(max=values.shape[1] - 1)] * share


def _distance(shape: str, x: Tensor, y: Tensor, radius: Tensor, angle: Tensor) -> Tensor:
    """As `data.signed_distance`."""
    if shape in ("circle", "ring"):
        reach = torch.hypot(x, y)
        return reach - radius if shape == "circle" else (reach - 0.78 * radius).abs() - 0.22 * radius
    cos, sin = angle.cos(), angle.sin()
    x, y = cos * x + sin * y, cos * y - sin * x
    if shape == "square":
        return torch.maximum(x.abs(), y.abs()) - 0.82 * radius
    if shape == "triangle":
        return torch.maximum(y, 0.8660254 * x.abs() - 0.5 * y) - 0.55 * radius
    fifth = torch.pi / 5
    fold = (torch.remainder(torch.atan2(x, -y) + fifth, 2 * fifth) - fifth).abs()
    reach = torch.hypot(x, y)
    # The edge from a tip at 1.12 of the radius to a dent at 0.42 of it, as `data.signed_distance` has it.
    edge = np.array([0.42 * np.sin(fifth), 0.42 * np.cos(fifth) - 1.12])
    normal = np.array([-edge[1], edge[0]]) / np.hypot(*edge)
    normal = normal if normal[1] > 0 else -normal
    return reach * fold.sin() * float(normal[0]) + (reach * fold.cos() - 1.12 * radius) * float(normal[1])
