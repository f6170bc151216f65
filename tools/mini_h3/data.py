"""Clips of one coloured shape with a soundtrack that follows it: the world that mini-h3 is trained on.

Everything is drawn from a seed with numpy alone. A `Scene` says what is in a clip; `render` draws it, `sound` plays it and
`caption` words it. What can be read back from pixels and samples (colour, shape, direction, pitch, pan, clicks) is what
`judge.py` measures. Shape letters: T frames, H height, W width, N samples.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FPS = 24
SAMPLE_RATE_HZ = 32_000
WIDTH, HEIGHT = 192, 128
NUM_FRAMES = 107

# Bright and saturated, while backgrounds stay under 0.4 in every channel: brightness alone tells them apart.
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.95, 0.12, 0.10),
    "orange": (1.00, 0.55, 0.05),
    "yellow": (0.98, 0.93, 0.15),
    "green": (0.10, 0.85, 0.20),
    "cyan": (0.10, 0.88, 0.95),
    "blue": (0.15, 0.25, 1.00),
    "magenta": (0.95, 0.15, 0.90),
    "white": (0.97, 0.97, 0.97),
}
# One pitch a colour, two to five semitones apart. All are multiples of 40 Hz, so each latent of the sound, 25 ms, holds whole
# periods and a steady tone is one latent over and over.
PITCHES_HZ: dict[str, float] = dict(zip(COLOURS, (200.0, 240.0, 320.0, 400.0, 480.0, 560.0, 680.0, 800.0), strict=True))
SHAPES = ("circle", "square", "triangle", "star", "ring")
BACKGROUNDS = ("black", "gray", "navy", "dusk", "checkered")
DIRECTIONS: dict[str, tuple[int, int]] = {
    "right": (1, 0),
    "left": (-1, 0),
    "up": (0, -1),
    "down": (0, 1),
    "up and to the right": (1, -1),
    "up and to the left": (-1, -1),
    "down and to the right": (1, 1),
    "down and to the left": (-1, 1),
}
MOTIONS = (*DIRECTIONS, "spins", "grows", "shrinks", "bounces sideways", "bounces up and down")
TURNING_SHAPES = ("square", "triangle", "star")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One clip. x, y: centre at the first frame in pixels; radius in pixels; speed in pixels a second (of the centre).

    pitch: the colour whose pitch is heard; its own but where a recording says otherwise. num_frames: how long it moves.
    """

    colour: str
    shape: str
    motion: str
    background: str
    x: float
    y: float
    radius: float
    speed: float
    angle: float
    seed: int
    pitch: str
    num_frames: int = NUM_FRAMES

    @property
    def is_held_out(self) -> bool:
        """Whether its colour, shape, motion and background together are kept from training: a tenth of all there are."""
        return zlib.crc32(f"{self.colour}/{self.shape}/{self.motion}/{self.background}".encode()) % 10 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Where the shape is, a row a frame: centre [T,2] in pixels, radius [T], angle [T], frames on which it hits a wall."""

    centre: npt.NDArray[np.float64]
    radius: npt.NDArray[np.float64]
    angle: npt.NDArray[np.float64]
    hits: tuple[int, ...]


def draw_scene(seed: int, num_frames: int = NUM_FRAMES) -> Scene:
    """A random scene of that many frames; each direction is as likely as each other motion."""
    rng = np.random.default_rng(seed)
    motion = str(rng.choice(MOTIONS))
    shape = str(rng.choice(TURNING_SHAPES if motion == "spins" else SHAPES))
    radius = float(rng.uniform(13.0, 21.0))
    speed = float(rng.uniform(0.6, 1.0))
    seconds = num_frames / FPS
    x, y = rng.uniform(radius + 4, WIDTH - radius - 4), rng.uniform(radius + 4, HEIGHT - radius - 4)
    if motion in DIRECTIONS:
        dx, dy = DIRECTIONS[motion]
        # The path fits the canvas: it is as long as the free room allows, times the speed.
        free = min([r for r, d in ((WIDTH - 2 * radius - 8, dx), (HEIGHT - 2 * radius - 8, dy)) if d])
        travel = speed * free
        x = _start(rng, WIDTH, radius, travel * dx) if dx else x
        y = _start(rng, HEIGHT, radius, travel * dy) if dy else y
        pixels_a_second = travel / seconds
    elif motion.startswith("bounces"):
        pixels_a_second = speed * 130.0
    else:
        pixels_a_second = 0.0
        x, y = rng.uniform(45, WIDTH - 45), rng.uniform(45, HEIGHT - 45)
    colour = str(rng.choice(list(COLOURS)))
    return Scene(
        colour=colour,
        shape=shape,
        motion=motion,
        background=str(rng.choice(BACKGROUNDS)),
        x=float(x),
        y=float(y),
        radius=radius,
        speed=pixels_a_second,
        angle=float(rng.uniform(-0.15, 0.15)),
        seed=seed,
        pitch=colour,
        num_frames=num_frames,
    )


def _start(rng: np.random.Generator, size: int, radius: float, travel: float) -> float:
    low, high = radius + 4 + max(0.0, -travel), size - radius - 4 - max(0.0, travel)
    return float(rng.uniform(low, max(low, high)))


def track(scene: Scene) -> Track:
    """The path of the shape through the clip."""
    num_frames = scene.num_frames
    seconds = np.arange(num_frames) / FPS
    centre = np.tile(np.array([scene.x, scene.y]), (num_frames, 1))
    radius = np.full(num_frames, scene.radius)
    angle = np.full(num_frames, scene.angle)
    hits: list[int] = []
    if scene.motion in DIRECTIONS:
        centre = centre + seconds[:, None] * scene.speed * np.array(DIRECTIONS[scene.motion])
    elif scene.motion.startswith("bounces"):
        axis, size = (0, WIDTH) if scene.motion == "bounces sideways" else (1, HEIGHT)
        centre[:, axis], hits = _reflected(centre[0, axis], scene, seconds, size)
    elif scene.motion == "spins":
        angle = angle + seconds * 2 * np.pi * 0.4
    else:
        factor = np.linspace(0.6, 1.8, num_frames)
        radius = scene.radius * (factor if scene.motion == "grows" else factor[::-1])
    return Track(centre=centre, radius=radius, angle=angle, hits=tuple(hits))


def _reflected(
    start: float, scene: Scene, seconds: npt.NDArray[np.float64], size: int
) -> tuple[npt.NDArray[np.float64], list[int]]:
    low, span = scene.radius, size - 2 * scene.radius
    # The seed settles which way it goes first.
    direction = 1.0 if scene.seed % 2 else -1.0
    phase = (start - low) + direction * scene.speed * seconds
    folded = np.mod(phase, 2 * span)
    place = low + np.where(folded > span, 2 * span - folded, folded)
    wall = np.floor(phase / span)
    return place, [int(k) for k in np.flatnonzero(np.diff(wall) != 0) + 1]


def render(scene: Scene) -> npt.NDArray[np.uint8]:
    """uint8 [T,H,W,3]; edges are smoothed over one pixel."""
    path, num_frames = track(scene), scene.num_frames
    ground = background(scene.background)
    colour = np.array(COLOURS[scene.colour], np.float32)
    frames = np.empty((num_frames, HEIGHT, WIDTH, 3), np.uint8)
    frames[:] = np.rint(255 * ground)
    for k in range(num_frames):
        # Only the box around the shape is computed; the star's tips reach farthest, to 1.12 of the radius.
        (x, y), reach = path.centre[k], 1.12 * path.radius[k] + 2
        left, top = max(0, int(x - reach)), max(0, int(y - reach))
        right, bottom = min(WIDTH, int(x + reach) + 2), min(HEIGHT, int(y + reach) + 2)
        ys, xs = np.mgrid[top:bottom, left:right].astype(np.float32)
        distance = signed_distance(scene.shape, xs - np.float32(x), ys - np.float32(y), path.radius[k], path.angle[k])
        cover = np.clip(0.5 - distance, 0.0, 1.0)[..., None]
        frames[k, top:bottom, left:right] = np.rint(
            255 * (ground[top:bottom, left:right] * (1 - cover) + colour * cover)
        )
    return frames


def background(name: str) -> npt.NDArray[np.float32]:
    """float32 [H,W,3], nowhere brighter than 0.4."""
    ground = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    if name == "gray":
        ground[:] = 0.32
    elif name == "navy":
        ground[:] = (0.03, 0.06, 0.30)
    elif name == "dusk":
        height = np.linspace(0, 1, HEIGHT, dtype=np.float32)[:, None, None]
        ground[:] = (1 - height) * np.array([0.08, 0.05, 0.25]) + height * np.array([0.38, 0.16, 0.10])
    elif name == "checkered":
        ys, xs = np.mgrid[0:HEIGHT, 0:WIDTH]
        ground[:] = np.where(((ys // 32) + (xs // 32)) % 2, 0.30, 0.12)[..., None]
    return ground


def signed_distance(
    shape: str, x: npt.NDArray[np.float32], y: npt.NDArray[np.float32], radius: float, angle: float
) -> npt.NDArray[Any]:
    """Signed distance in pixels to the outline (exact for circle and ring, within a pixel near the edge for others)."""
    if shape == "circle":
        return np.hypot(x, y) - radius
    if shape == "ring":
        return np.abs(np.hypot(x, y) - 0.78 * radius) - 0.22 * radius
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    x, y = cos * x + sin * y, cos * y - sin * x
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - 0.82 * radius
    if shape == "triangle":
        return np.maximum(y, 0.8660254 * np.abs(x) - 0.5 * y) - 0.55 * radius
    # Star: the pentagram is the union of five triangles of half-planes, met by folding the plane five times.
    turn = np.arctan2(x, -y)
    fold = np.abs(np.mod(turn + np.pi / 5, 2 * np.pi / 5) - np.pi / 5)
    reach = np.hypot(x, y)
    px, py = reach * np.sin(fold), reach * np.cos(fold)
    inner = 0.42 * radius
    tip, dent = np.array([0.0, 1.12 * radius]), inner * np.array([np.sin(np.pi / 5), np.cos(np.pi / 5)])
    edge = dent - tip
    normal = np.array([-edge[1], edge[0]]) / np.hypot(*edge)
    normal = normal if normal @ tip > 0 else -normal
    return np.asarray((px - tip[0]) * normal[0] + (py - tip[1]) * normal[1], np.float32)


def sound(scene: Scene) -> npt.NDArray[np.float32]:
    """float32 [2,N]: pitch by colour, timbre by shape, pan by where the shape is, a click for each wall hit."""
    path = track(scene)
    samples = round(scene.num_frames / FPS * SAMPLE_RATE_HZ)
    seconds = np.arange(samples) / SAMPLE_RATE_HZ
    tone = TONE_LEVEL * loudness(scene, seconds) * timbre(scene.shape, PITCHES_HZ[scene.pitch], seconds)
    place = np.interp(seconds, np.arange(scene.num_frames) / FPS, path.centre[:, 0]) / WIDTH
    # Equal power: the sum of squares over both ears stays the same wherever the shape is.
    wave = np.stack([np.cos(place * np.pi / 2), np.sin(place * np.pi / 2)]) * tone
    click = click_wave()
    for hit in path.hits:
        first = round(hit / FPS * SAMPLE_RATE_HZ)
        wave[:, first : first + len(click)] += click[: samples - first]
    return np.clip(wave, -0.99, 0.99).astype(np.float32)


TONE_LEVEL = 0.28
HARMONICS: dict[str, tuple[tuple[int, float], ...]] = {
    "circle": ((1, 1.0),),
    "square": ((1, 0.9), (3, 0.5), (5, 0.3)),
    "triangle": ((1, 1.0), (2, 0.45)),
    "star": ((1, 0.8), (2, 0.5), (3, 0.4), (4, 0.3), (5, 0.2)),
    "ring": ((1, 0.8), (4, 0.6)),
}
"""(multiple, level) of each shape's tone; a few each, so that nothing folds over at 32 kHz."""


def timbre(shape: str, pitch_hz: float, seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The steady tone of a shape."""
    parts = [level * np.sin(2 * np.pi * k * pitch_hz * seconds) for k, level in HARMONICS[shape]]
    return np.asarray(np.sum(parts, axis=0))


def loudness(scene: Scene, seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How loud the tone is at each time, at most 1: it follows the size, and beats while the shape spins."""
    if scene.motion in ("grows", "shrinks"):
        radius = track(scene).radius
        return np.asarray(np.interp(seconds, np.arange(scene.num_frames) / FPS, radius / radius.max()))
    if scene.motion == "spins":
        return np.asarray(0.75 + 0.25 * np.cos(2 * np.pi * 1.6 * seconds))
    return np.ones_like(seconds)


def click_wave() -> npt.NDArray[np.float64]:
    """float64 [1600]: a short burst of noise, the same each time."""
    burst = np.random.default_rng(7).standard_normal(1600)
    return np.asarray(0.22 * burst * np.exp(-np.arange(1600) / 280.0))


_NOUNS = {
    "circle": ("circle", "ball", "disc", "round dot"),
    "square": ("square", "box", "block"),
    "triangle": ("triangle", "wedge"),
    "star": ("star", "five-pointed star"),
    "ring": ("ring", "hoop"),
}
_GROUNDS = {
    "black": ("a black background", "darkness", "a black void"),
    "gray": ("a gray background", "a plain gray wall"),
    "navy": ("a navy background", "a deep blue night"),
    "dusk": ("a dusk sky", "a sunset gradient"),
    "checkered": ("a checkered floor", "a checkerboard"),
}
_VERBS = ("moves", "slides", "drifts", "glides", "travels")


_SHOWN = {
    "picture": (
        "the shape from the picture",
        "the thing in Picture 1",
        "what the picture shows",
        "the shape in the image",
    ),
}
_HEARD = ("with the sound of Audio 1", "to the tone of the recording", "sounding like the recording")
_GOES_ON = ("the clip goes on", "continue the video", "the motion of Video 1 continues", "keep going like the video")


def caption(scene: Scene, rng: np.random.Generator | None = None) -> str:
    """One of many ways to word the scene; which one is drawn from `rng` (default: from the scene's seed)."""
    rng = rng or np.random.default_rng(scene.seed + 1)
    size = ("small ", "") if scene.radius < 15.5 else ("large ", "big ", "") if scene.radius > 18.5 else ("",)
    thing = f"{rng.choice(size)}{scene.colour} {rng.choice(_NOUNS[scene.shape])}"
    return _worded(scene, f"{'an' if thing[0] in 'aeio' else 'a'} {thing}", "that", "", rng)


def reference_caption(scene: Scene, rng: np.random.Generator, *, has_recording: bool) -> str:
    """The scene with the shape left to a picture, and the pitch to a recording if there is one."""
    heard = f" {rng.choice(_HEARD)}" if has_recording else ""
    return _worded(scene, str(rng.choice(_SHOWN["picture"])), "which", heard, rng)


def sequel_caption(rng: np.random.Generator) -> str:
    """Words that ask for a clip to be gone on with."""
    return str(rng.choice(_GOES_ON))


def _worded(scene: Scene, thing: str, relative: str, heard: str, rng: np.random.Generator) -> str:
    act = _act(scene, rng) + heard
    ground = rng.choice(_GROUNDS[scene.background])
    forms = (
        f"{thing} {act} over {ground}",
        f"{thing} {act}, {ground} behind it",
        f"over {ground}, {thing} {act}",
        f"{ground}: {thing} {act}",
        f"{thing} {relative} {act}, in front of {ground}",
        f"{thing} {act} before {ground}",
    )
    text = str(rng.choice(forms))
    return text[0].upper() + text[1:] + "." if rng.random() < 0.3 else text


def _act(scene: Scene, rng: np.random.Generator) -> str:
    if scene.motion in DIRECTIONS:
        slow = scene.speed < 12.0
        pace = rng.choice(("slowly ", "") if slow else ("quickly ", "") if scene.speed > 26.0 else ("",))
        return f"{pace}{rng.choice(_VERBS)} {scene.motion}"
    words = {
        "spins": ("spins", "turns around", "rotates in place"),
        "grows": ("grows", "gets bigger", "swells"),
        "shrinks": ("shrinks", "gets smaller"),
        "bounces sideways": ("bounces from side to side", "bounces left and right between the walls"),
        "bounces up and down": ("bounces up and down", "bounces between floor and ceiling"),
    }
    return str(rng.choice(words[scene.motion]))
