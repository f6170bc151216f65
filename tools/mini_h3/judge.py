"""Reads a clip with plain arithmetic: what is on the picture, where it goes and what is heard. No learned model.

The measures lean on what `data.py` promises: backgrounds stay dark, the shape is bright, one pitch a colour. Each measure
was checked on clips drawn by `data.py` itself; `tests/tools/mini_h3` holds those figures.
Shape letters: T frames, H height, W width, N samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tools.mini_h3.data import COLOURS, DIRECTIONS, FPS, PITCHES_HZ, SHAPES, Scene, signed_distance

BRIGHT = 0.52
"""A pixel is of the shape when its brightest channel is above this; backgrounds stay below 0.4, colours above 0.85."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen: a row a frame for centre [T,2] in pixels and area [T]; direction as unit steps, or (0, 0)."""

    colour: str
    shape: str
    centre: npt.NDArray[np.float64]
    area: npt.NDArray[np.float64]
    direction: tuple[int, int]
    size_change: float
    turns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """What is heard: pitch class by colour name, right-minus-left balance a frame in [-1,1], frames with a click."""

    pitch_of: str
    pitch_hz: float
    balance: npt.NDArray[np.float64]
    clicks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Each measure against the scene that was asked for; None where the scene does not say."""

    colour: bool
    shape: bool
    direction: bool | None
    size_change: bool | None
    pitch: bool
    pan: bool | None
    onset: bool | None


def judge(scene: Scene, frames: npt.NDArray[np.uint8], wave: npt.NDArray[np.float32], rate_hz: int) -> Verdict:
    """Scores a clip. frames: uint8 [T,H,W,3]; wave: float32 [2,N]."""
    seen, heard = look(frames), listen(wave, rate_hz, len(frames))
    moves = scene.motion in DIRECTIONS
    resizes = scene.motion in ("grows", "shrinks")
    bounces = scene.motion.startswith("bounces")
    return Verdict(
        colour=seen.colour == scene.colour,
        shape=seen.shape == scene.shape,
        direction=seen.direction == DIRECTIONS[scene.motion] if moves else None,
        size_change=(seen.size_change > 1.3 if scene.motion == "grows" else seen.size_change < 0.77)
        if resizes
        else None,
        pitch=heard.pitch_of == scene.pitch,
        pan=pan_follows(seen, heard, frames.shape[2]),
        onset=clicks_match(seen.turns, heard.clicks) if bounces else None,
    )


def look(frames: npt.NDArray[np.uint8]) -> Sight:
    """Reads the picture; an empty one gives an unknown colour and shape."""
    masks = frames.max(axis=3) > 255 * BRIGHT
    area = masks.sum(axis=(1, 2)).astype(np.float64)
    ys, xs = np.mgrid[0 : frames.shape[1], 0 : frames.shape[2]]
    there = np.maximum(area, 1.0)
    centre = np.stack([(masks * xs).sum((1, 2)) / there, (masks * ys).sum((1, 2)) / there], axis=1)
    if (area > 12).mean() < 0.5:
        return Sight(colour="", shape="", centre=centre, area=area, direction=(0, 0), size_change=1.0, turns=())
    tenth = max(1, len(frames) // 10)
    return Sight(
        colour=_colour(frames, masks),
        shape=_shape(masks, centre, area),
        centre=centre,
        area=area,
        direction=_direction(centre),
        size_change=float(np.sqrt(np.median(area[-tenth:]) / max(1.0, np.median(area[:tenth])))),
        turns=_turns(centre),
    )


def _colour(frames: npt.NDArray[np.uint8], masks: npt.NDArray[np.bool_]) -> str:
    found = np.median(frames[masks].astype(np.float64) / 255, axis=0)
    distances = {name: float(np.abs(np.array(colour) - found).sum()) for name, colour in COLOURS.items()}
    nearest: str = min(distances, key=lambda name: distances[name])
    return nearest


def _shape(masks: npt.NDArray[np.bool_], centre: npt.NDArray[np.float64], area: npt.NDArray[np.float64]) -> str:
    votes = dict.fromkeys(SHAPES, 0.0)
    for k in np.linspace(0, len(masks) - 1, 9).astype(int):
        if area[k] < 60:
            continue
        for shape, overlap in _overlaps(masks[k], centre[k], area[k]).items():
            votes[shape] += overlap
    best: str = max(votes, key=lambda name: votes[name])
    return best


def _overlaps(mask: npt.NDArray[np.bool_], centre: npt.NDArray[np.float64], area: float) -> dict[str, float]:
    """Best intersection over union with each shape drawn at the same place with the same area, over turns and shifts."""
    ys, xs = np.mgrid[0 : mask.shape[0], 0 : mask.shape[1]].astype(np.float32)
    found = {}
    for shape in SHAPES:
        radius = _radius_of_area(shape, area)
        best = 0.0
        for angle in (np.arange(0, 12) * np.pi / 15) if shape not in ("circle", "ring") else (0.0,):
            # The centroid of the drawn outline need not be its origin: draw once, then shift the centroid onto ours.
            drawn = signed_distance(shape, xs - centre[0], ys - centre[1], radius, float(angle)) < 0
            off = centre - [xs[drawn].mean(), ys[drawn].mean()] if drawn.any() else np.zeros(2)
            drawn = signed_distance(shape, xs - centre[0] - off[0], ys - centre[1] - off[1], radius, float(angle)) < 0
            best = max(best, float((drawn & mask).sum() / max(1, (drawn | mask).sum())))
        found[shape] = best
    return found


def _radius_of_area(shape: str, area: float) -> float:
    ys, xs = np.mgrid[-40:41, -40:41].astype(np.float32)
    unit = float((signed_distance(shape, xs, ys, 30.0, 0.0) < 0).sum()) / 900.0
    return float(np.sqrt(area / unit))


def _direction(centre: npt.NDArray[np.float64]) -> tuple[int, int]:
    moved = np.median(centre[-8:], axis=0) - np.median(centre[:8], axis=0)
    reach = float(np.hypot(*moved))
    if reach < 10:
        return (0, 0)
    step = [int(np.sign(m)) if abs(m) > 0.38 * reach else 0 for m in moved]
    return (step[0], step[1])


def _turns(centre: npt.NDArray[np.float64]) -> tuple[int, ...]:
    """Frames on which the motion along its main axis turns back."""
    axis = int(np.argmax(np.ptp(centre, axis=0)))
    place = centre[:, axis]
    if np.ptp(place) < 15:
        return ()
    smooth = np.convolve(np.pad(place, 2, mode="edge"), np.ones(5) / 5, mode="valid")
    speed = np.diff(smooth)
    going = np.sign(np.where(np.abs(speed) < 0.3, 0, speed))
    held, turns, last = 0.0, [], 0
    for k, way in enumerate(going):
        if way and held and way != held:
            turns.append(round((last + 1 + k) / 2))
        if way:
            held, last = way, k
    return tuple(turns)


def listen(wave: npt.NDArray[np.float32], rate_hz: int, num_frames: int) -> Hearing:
    """Reads the sound; balance is measured a frame of the picture at a time."""
    mono = wave.astype(np.float64).sum(axis=0)
    pitch = _pitch(mono, rate_hz)
    names = list(PITCHES_HZ)
    distance = [abs(np.log2(max(pitch, 1.0) / PITCHES_HZ[name])) for name in names]
    per = rate_hz / FPS
    count = min(num_frames, int(wave.shape[1] / per))
    balance = np.zeros(num_frames)
    for k in range(count):
        part = wave[:, round(k * per) : round((k + 1) * per)].astype(np.float64)
        left, right = np.sqrt((part**2).mean(axis=1)) + 1e-9
        balance[k] = (right - left) / (right + left)
    return Hearing(
        pitch_of=names[int(np.argmin(distance))] if min(distance) < 1.5 / 12 else "",
        pitch_hz=pitch,
        balance=balance,
        clicks=_clicks(mono, rate_hz),
    )


def _pitch(mono: npt.NDArray[np.float64], rate_hz: int) -> float:
    """The fundamental by summing the spectrum over candidate harmonics (each candidate weighs its own first line most)."""
    spectrum = np.abs(np.fft.rfft(mono * np.hanning(len(mono)), 1 << 18))
    hz = np.fft.rfftfreq(1 << 18, 1 / rate_hz)
    if spectrum.max() < 1e-3:
        return 0.0
    candidates = 170.0 * 2 ** (np.arange(0, 12 * 2.4, 0.1) / 12)
    width = 2 ** (0.15 / 12)

    def level(at: float) -> float:
        low, high = np.searchsorted(hz, [at / width, at * width])
        return float(spectrum[low : max(high, low + 1)].max())

    scores = [level(c) for c in candidates]
    strongest = max(scores)
    # The lowest line that is nearly as strong as any is the fundamental: all timbres lead with it.
    return float(next(c for c, s in zip(candidates, scores, strict=True) if s > 0.7 * strongest))


def _clicks(mono: npt.NDArray[np.float64], rate_hz: int) -> tuple[int, ...]:
    """Frames on which wide-band energy above the tone's harmonics jumps."""
    hop = rate_hz // 200
    windows = np.lib.stride_tricks.sliding_window_view(mono, 512)[::hop]
    high = np.abs(np.fft.rfft(windows * np.hanning(512), axis=1))[:, int(5500 / rate_hz * 512) :]
    energy = (high**2).sum(axis=1)
    ground = np.median(energy) + 1e-6
    jumps = (energy > 12 * ground) & (energy > 0.08 * energy.max())
    starts = np.flatnonzero(jumps & ~np.roll(jumps, 1))
    frames: list[int] = []
    for start in starts:
        frame = round((start * hop + 256) / rate_hz * FPS)
        if not frames or frame - frames[-1] > 3:
            frames.append(frame)
    return tuple(frames)


def pan_follows(seen: Sight, heard: Hearing, width: int) -> bool | None:
    """Whether the sound is on the side where the shape is; None when the shape stays near the middle."""
    place = seen.centre[:, 0] / width - 0.5
    clear = (np.abs(place) > 0.08) & (seen.area > 12)
    if clear.sum() < 8:
        return None
    return bool((np.sign(place[clear]) == np.sign(heard.balance[clear])).mean() > 0.8)


def clicks_match(turns: tuple[int, ...], clicks: tuple[int, ...], within: int = 2) -> bool | None:
    """Whether each turn has a click within so many frames and each click a turn; ends of the clip are not counted."""
    if not turns and not clicks:
        return False
    close = [any(abs(t - c) <= within for c in clicks) for t in turns]
    back = [any(abs(t - c) <= within for t in turns) for c in clicks if 3 <= c <= 103]
    both = close + back
    return sum(both) >= 0.8 * len(both)
