"""The tokenizer of mini-h3, and requests as the token streams that its text encoder is given."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tools.mini_h3.architecture import NUM_WORDS, SPECIAL_TOKENS
from tools.mini_h3.build import write_tokenizer

from omnireel.models.minimax_h3.references import Text, present
from omnireel.request import MediaInput, MediaKind
from tools.mini_h3 import data

MERGED = 2
"""Patches of an edge that make one token of the text encoder."""


def learn_merges() -> list[tuple[str, str]]:
    """Merges of a byte-pair tokenizer for the captions, the same each time."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=NUM_WORDS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_sentences(), trainer)
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def _sentences() -> Iterable[str]:
    rng = np.random.default_rng(0)
    labels = [f"<{kind} {k}>: " for kind in ("Picture", "Video", "Audio") for k in range(1, 4)]
    labels += [f"<{second / 4:.1f} seconds>" for second in range(20)]
    for seed in range(3000):
        scene = data.draw_scene(seed)
        yield data.caption(scene, rng)
        yield data.reference_caption(scene, rng, has_recording=seed % 2 == 0)
        yield data.sequel_caption(rng)
        yield labels[seed % len(labels)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """A request's tokens. ids: int64 [L]; positions: int64 [3,L]; is_vision: bool [L], of a picture's block, its ends
    counted; is_patch: bool [L], without its ends.
    """

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    is_vision: npt.NDArray[np.bool_]
    is_patch: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A medium of a request, without its content. kind: "picture", "clip" or "recording"; grid: (rows, columns) in patches."""

    kind: str
    grid: tuple[int, int] = (8, 12)
    num_frames: int = 1
    is_heard: bool = False

    def stand_in(self) -> MediaInput:
        """What `present` reads of it."""
        wave = np.zeros((2, 1), np.float32) if self.is_heard or self.kind == "recording" else None
        kinds = {"picture": MediaKind.IMAGE, "clip": MediaKind.VIDEO, "recording": MediaKind.AUDIO}
        frames = None if self.kind == "recording" else np.zeros((self.num_frames, 1, 1, 3), np.uint8)
        return MediaInput(kind=kinds[self.kind], role="reference", frames=frames, wave=wave)


class Words:
    """Token streams of requests."""

    def __init__(self) -> None:
        from transformers import Qwen2TokenizerFast

        # The class that serves it splits words by rules of its own, whatever the file says.
        with tempfile.TemporaryDirectory() as folder:
            write_tokenizer(Path(folder), learn_merges())
            self._tokenizer = Qwen2TokenizerFast.from_pretrained(folder, local_files_only=True)
        self._special = {name: int(self._tokenizer.convert_tokens_to_ids(name)) for name in SPECIAL_TOKENS}
        self._tokens = lru_cache(4096)(self._tokens_of)

    def _tokens_of(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def stream(self, prompt: str, media: Sequence[Given] = ()) -> Stream:
        """As the served conditioner makes it of a prompt and media."""
        grids = {
            MediaKind.IMAGE: [item.grid for item in media if item.kind == "picture"],
            MediaKind.VIDEO: [item.grid for item in media if item.kind == "clip"],
        }
        pads = {MediaKind.IMAGE: "<|image_pad|>", MediaKind.VIDEO: "<|video_pad|>"}
        ids: list[int] = []
        kinds: list[int] = []
        places: list[npt.NDArray[np.int64]] = []
        clock = 0
        for part in present(prompt, tuple(item.stand_in() for item in media)):
            if isinstance(part, Text):
                tokens = self._tokens(part.words)
                ids += tokens
                kinds += [0] * len(tokens)
                places.append(np.tile(np.arange(clock, clock + len(tokens)), (3, 1)))
                clock += len(tokens)
                continue
            rows, columns = (edge // MERGED for edge in grids[part.kind][part.index])
            ids += [self._special["<|vision_start|>"], *[self._special[pads[part.kind]]] * (rows * columns)]
            ids.append(self._special["<|vision_end|>"])
            kinds += [1, *[2] * (rows * columns), 1]
            places.append(np.full((3, 1), clock))
            lines, steps = np.divmod(np.arange(rows * columns), columns)
            places.append(clock + 1 + np.stack([np.zeros_like(lines), lines, steps]))
            clock += 1 + max(rows, columns)
            places.append(np.full((3, 1), clock))
            clock += 1
        kind = np.array(kinds)
        return Stream(
            ids=np.array(ids), positions=np.concatenate(places, axis=1), is_vision=kind > 0, is_patch=kind == 2
        )
