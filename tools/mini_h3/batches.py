"""Training batches of the DiT: which requests lie side by side, and where each of their rows lies.

A batch always has the same requests of each kind, so that its tensors always have the same sizes; what is left over is one
document of padding. Workers choose scenes, words and places; the device gathers latents by what they chose.
Letters: B documents, S packed rows, L text rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tools.mini_h3.data import HEIGHT, NUM_FRAMES, WIDTH, Scene
from tools.mini_h3.pools import RECORDING_LATENTS, SEQUEL_FRAMES, by_look, geometry
from tools.mini_h3.words import Given, Words
from torch import Tensor

from omnireel.models.minimax_h3.limits import latent_frames, sound_latents_of
from omnireel.models.minimax_h3.packing import (
    TEXT_TAG,
    VIDEO_TAG,
    ClipReference,
    Condition,
    Keyframe,
    PackedLayout,
    PictureReference,
    SoundReference,
    Target,
    pack,
)
from tools.mini_h3 import data

PATCH = (1, 2, 2)
TARGET = Target(
    latent_frames=latent_frames(NUM_FRAMES), latent_height=HEIGHT // 16, latent_width=WIDTH // 16,
    sound_latents=sound_latents_of(NUM_FRAMES),
)  # fmt: skip
TEXT_ROWS = 24
"""Room for text, a request on average, pictures not counted; the padding document takes up what is not used."""

WIDE, SQUARE = (8, 12), (8, 8)
_KEY = Given(kind="picture", grid=WIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Requests of one form. source: pool of the clips that are made. picks: what is given, in order, each the name of a
    pool ("first" and "last" are frames of the clip that is made, "before" and "heard_before" what goes before it).
    """

    name: str
    source: str
    picks: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    given: tuple[Given, ...] = ()

    @property
    def seen_rows(self) -> int:
        """Rows of the text that stand for pictures, their ends counted."""
        total = 0
        for item in self.given:
            if item.kind != "recording":
                pairs = 1 if item.kind == "picture" else -(-len(range(0, item.num_frames, 12)) // 2)
                total += pairs * (item.grid[0] * item.grid[1] // 4 + 2) + (8 * pairs if item.kind == "clip" else 0)
        return total

    @property
    def media_rows(self) -> int:
        """Rows of picture and sound."""
        layout = _layout(self.conditions, (TEXT_TAG,))
        return layout.num_rows - 1


def _sequel(num_given: int, *, is_heard: bool) -> Kind:
    frames, sound = geometry(num_given)
    reference = ClipReference(
        latent_frames=frames,
        latent_height=HEIGHT // 16,
        latent_width=WIDTH // 16,
        sound_latents=sound if is_heard else 0,
    )
    return Kind(
        name=f"sequel{num_given}{'' if is_heard else '_silent'}", source=f"sequels{num_given}",
        picks=("before", "heard_before") if is_heard else ("before",), conditions=(reference,),
        given=(Given(kind="clip", grid=WIDE, num_frames=num_given, is_heard=is_heard),),
    )  # fmt: skip


_PICTURE = PictureReference(latent_height=HEIGHT // 16, latent_width=WIDTH // 16)
_SOUND = SoundReference(num_latents=RECORDING_LATENTS)
_RECORDING = Given(kind="recording")
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="text", source="clips"),
        Kind(name="first", source="clips", picks=("first",), conditions=(Keyframe(anchor="first"),), given=(_KEY,)),
        Kind(name="last", source="clips", picks=("last",), conditions=(Keyframe(anchor="last"),), given=(_KEY,)),
        Kind(
            name="both", source="clips", picks=("first", "last"),
            conditions=(Keyframe(anchor="first"), Keyframe(anchor="last")), given=(_KEY, _KEY),
        ),
        Kind(name="picture", source="clips", picks=("pictures",), conditions=(_PICTURE,), given=(_KEY,)),
        Kind(
            name="square", source="clips", picks=("squares",),
            conditions=(PictureReference(latent_height=8, latent_width=8),), given=(Given(kind="picture", grid=SQUARE),),
        ),
        Kind(
            name="picture_recording", source="strange", picks=("pictures", "recordings"), conditions=(_PICTURE, _SOUND),
            given=(_KEY, _RECORDING),
        ),
        Kind(
            name="recording_picture", source="strange", picks=("recordings", "pictures"), conditions=(_SOUND, _PICTURE),
            given=(_RECORDING, _KEY),
        ),
        _sequel(SEQUEL_FRAMES[0], is_heard=True),
        _sequel(SEQUEL_FRAMES[0], is_heard=False),
        _sequel(SEQUEL_FRAMES[1], is_heard=True),
    )
}  # fmt: skip
BASE_MIX = {
    "text": 34, "first": 6, "last": 2, "both": 4, "picture": 4, "square": 2, "picture_recording": 4,
    "recording_picture": 2, "sequel39": 2, "sequel39_silent": 1, "sequel107": 2,
}  # fmt: skip
CLIP_MIX = {"text": 44, "first": 8, "last": 3, "both": 7}
REFERENCE_MIX = {
    "picture": 16, "square": 7, "picture_recording": 14, "recording_picture": 7, "sequel39": 5, "sequel39_silent": 3,
    "sequel107": 6,
}  # fmt: skip


@lru_cache(4096)
def _layout(conditions: tuple[Condition, ...], tags: tuple[int, ...]) -> PackedLayout:
    return pack(torch.tensor(tags), TARGET, patch_size=PATCH, conditions=conditions)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """A batch but for its latents, on the CPU.

    longest: rows of a document, at most. chosen: for each kind of the mix, which clip of its source, and of the pools in `picks`. ids: int64 [B,L];
    mrope: int64 [3,B,L]; lengths: int64 [B]; patch_at: where in [B*L] a picture's tokens lie. positions: float32 [S,3];
    tags, time_of (3 a document: picture, sound, given picture; then one for what is clean): int64 [S]; bounds: int32 [B+2].
    is_made_video, is_made_audio: bool over the picture and sound rows, whether they are to be made.
    """

    chosen: dict[str, list[Tensor]]
    longest: int
    ids: Tensor
    mrope: Tensor
    lengths: Tensor
    patch_at: Tensor
    text_from: Tensor
    text_at: Tensor
    video_at: Tensor
    audio_at: Tensor
    positions: Tensor
    tags: Tensor
    time_of: Tensor
    bounds: Tensor

    def to(self, device: torch.device) -> Batch:
        """All tensors on the device."""
        moved: dict[str, Any] = {
            name: getattr(self, name).to(device, non_blocking=True)
            for name in self.__slots__ if name not in ("chosen", "longest")
        }  # fmt: skip
        chosen = {name: [index.to(device, non_blocking=True) for index in picks] for name, picks in self.chosen.items()}
        return Batch(chosen=chosen, longest=self.longest, **moved)


class Drawer(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Draws batches without end; each worker from a stream of its own."""

    def __init__(self, scenes: Mapping[str, Sequence[Scene]], mix: Mapping[str, int], seed: int) -> None:
        self._scenes, self._mix, self._seed = scenes, dict(mix), seed
        self._looks = {name: by_look(scenes[name]) for name in ("pictures", "squares") if name in scenes}
        self._pitches: dict[str, list[int]] = {}
        for place, scene in enumerate(scenes.get("recordings", ())):
            self._pitches.setdefault(scene.pitch, []).append(place)
        self._words = Words()
        self.num_documents = sum(self._mix.values())
        kinds = [KINDS[name] for name, count in self._mix.items() for _ in range(count)]
        self.num_rows = sum(kind.media_rows + kind.seen_rows + TEXT_ROWS for kind in kinds)
        self.longest = max(max(kind.media_rows + kind.seen_rows for kind in kinds) + 96, 40 * self.num_documents)

    def __iter__(self) -> Any:
        worker = torch.utils.data.get_worker_info()
        rng = np.random.default_rng([self._seed, 0 if worker is None else worker.id])
        while True:
            batch = self.draw(rng)
            if batch is not None:
                yield batch

    def draw(self, rng: np.random.Generator) -> Batch | None:
        """One batch; None if its words do not fit, which is rare."""
        chosen: dict[str, list[Tensor]] = {}
        documents: list[tuple[Kind, str]] = []
        for name, count in self._mix.items():
            kind = KINDS[name]
            scenes = self._scenes[kind.source]
            places = rng.integers(0, len(scenes), count)
            picks = [places, *([self._pick(pool, scenes[k], rng) for k in places] for pool in kind.picks)]
            chosen[name] = [torch.tensor(np.asarray(places), dtype=torch.int64) for places in picks]
            documents += [(kind, _prompt(kind, scenes[k], rng)) for k in places]
        return self._packed(documents, chosen)

    def _pick(self, pool: str, scene: Scene, rng: np.random.Generator) -> int:
        if pool in self._looks:
            return int(rng.choice(self._looks[pool][scene.colour, scene.shape]))
        if pool == "recordings":
            return int(rng.choice(self._pitches[scene.pitch]))
        return 0

    def _packed(self, documents: list[tuple[Kind, str]], chosen: dict[str, list[Tensor]]) -> Batch | None:
        streams = [self._words.stream(prompt, kind.given) for kind, prompt in documents]
        lengths = np.array([len(stream.ids) for stream in streams])
        longest = -(-int(lengths.max()) // 16) * 16
        ids = np.zeros((len(streams), longest), np.int64)
        mrope = np.zeros((3, len(streams), longest), np.int64)
        patch_at, text_from, parts = [], [], _Parts()
        for k, ((kind, _), stream) in enumerate(zip(documents, streams, strict=True)):
            ids[k, : lengths[k]], mrope[:, k, : lengths[k]] = stream.ids, stream.positions
            patch_at.append(k * longest + np.flatnonzero(stream.is_patch))
            text_from.append(k * longest + np.arange(lengths[k]))
            tags = tuple(np.where(stream.is_vision, VIDEO_TAG, TEXT_TAG).tolist())
            parts.add(_layout(kind.conditions, tags), k)
        spare = self.num_rows - parts.num_rows
        if not 0 <= spare < self.longest:
            return None
        parts.pad(spare, len(documents))
        flat = {name: torch.from_numpy(np.concatenate(values)) for name, values in parts.rows.items()}
        return Batch(
            chosen=chosen,
            longest=self.longest,
            ids=torch.from_numpy(ids), mrope=torch.from_numpy(mrope), lengths=torch.from_numpy(lengths),
            patch_at=torch.from_numpy(np.concatenate(patch_at)), text_from=torch.from_numpy(np.concatenate(text_from)),
            bounds=torch.tensor(parts.bounds, dtype=torch.int32), **flat,
        )  # fmt: skip


def _prompt(kind: Kind, scene: Scene, rng: np.random.Generator) -> str:
    if kind.source.startswith("sequels"):
        return data.sequel_caption(rng)
    if set(kind.picks) & {"pictures", "squares"}:
        return data.reference_caption(scene, rng, has_recording="recordings" in kind.picks)
    return data.caption(scene, rng)


class _Parts:
    """Documents one behind another."""

    def __init__(self) -> None:
        names = ("text_at", "video_at", "audio_at", "positions", "tags", "time_of")
        self.rows: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self.bounds = [0]
        self.num_rows = 0

    def add(self, layout: PackedLayout, document: int) -> None:
        first = self.num_rows
        time_of = np.full(layout.num_rows, 3 * document)
        video, audio = layout.video_indices.numpy(), layout.audio_indices.numpy()
        time_of[audio] = 3 * document + 1
        time_of[video[: layout.num_condition_video_rows]] = 3 * document + 2
        time_of[audio[: layout.num_condition_audio_rows]] = -1
        self.rows["time_of"].append(time_of)
        self.rows["text_at"].append(first + layout.text_indices.numpy())
        self.rows["video_at"].append(first + video)
        self.rows["audio_at"].append(first + audio)
        self.rows["positions"].append(layout.position_ids.numpy().astype(np.float32))
        self.rows["tags"].append(layout.token_tags.numpy())
        self.num_rows += layout.num_rows
        self.bounds.append(self.num_rows)

    def pad(self, count: int, num_documents: int) -> None:
        self.rows["positions"].append(np.zeros((count, 3), np.float32))
        self.rows["tags"].append(np.full(count, TEXT_TAG))
        self.rows["time_of"].append(np.full(count, -1))
        for times in self.rows["time_of"]:
            times[times < 0] = 3 * num_documents
        self.num_rows += count
        self.bounds.append(self.num_rows)
