"""Words, pictures and clips to the states that the DiT reads: Qwen3-VL, run up to one decoder layer and no further.

The residual stream behind that layer is the condition, without the final norm; layers behind it are neither read from the
disk nor built. Letters: L text rows, C channels of a state.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnireel.errors import BadCheckpoint, InvalidRequest
from omnireel.models.minimax_h3.packing import TEXT_TAG, VIDEO_TAG
from omnireel.models.minimax_h3.references import Text, present
from omnireel.models.minimax_h3.vision import (
    CLIP_RULES,
    PICTURE_RULES,
    Patches,
    PatchRules,
    clip_patches,
    picture_patches,
)
from omnireel.observe import profile
from omnireel.request import MediaInput, MediaKind
from omnireel.weights import ComponentFiles, build_empty, load_component, read_index

_LAYER = re.compile(r"language_model\.layers\.(\d+)\.")
_UNREAD = ("language_model.norm.weight", "lm_head.weight")
"""Behind the last layer: known, and never read."""


class Conditioner:
    """The tokenizer and the cut text encoder.

    Args:
        folders: of the parts `text_encoder`, `tokenizer` and `processor`.
        num_layers: decoder layers that are run.
        device: where the encoder runs.
        dtype: type of its weights; None keeps the stored types.
    """

    def __init__(
        self, folders: Mapping[str, Path], *, num_layers: int, device: torch.device, dtype: torch.dtype | None
    ) -> None:
        self.files = read_index(folders["text_encoder"])
        self._device = device
        self._tokenizer = _tokenizer(folders["tokenizer"])
        config, stored_layers = _cut_config(self.files, num_layers)
        _check_vocabulary(self._tokenizer, config.text_config.vocab_size, folders["tokenizer"].name)
        self._max_tokens = int(config.text_config.max_position_embeddings)
        self._special = dict(_special_ids(config))
        self._picture_rules = PatchRules.read(folders["processor"] / "preprocessor_config.json", PICTURE_RULES)
        self._clip_rules = PatchRules.read(folders["processor"] / "video_preprocessor_config.json", CLIP_RULES)
        self._model = _built(config, self.files)
        known = self._model.state_dict().keys()
        load_component(
            self._model,
            self.files,
            device=device,
            rename=partial(_wanted_key, behind=range(num_layers, stored_layers), known=known),
            dtype_of=lambda _, stored: stored if dtype is None else dtype,
        )
        self._model.eval()

    def encode(self, prompt: str, media: tuple[MediaInput, ...] = ()) -> tuple[Tensor, Tensor]:
        """States [1,L,C] in the encoder's type on its device, and the tag of each text row, int64 [L] on the CPU.

        Args:
            prompt: the user's words, taken as they are.
            media: prepared pictures, clips and recordings, in the order that the prompt means.

        Raises:
            InvalidRequest: together they are more tokens than the encoder takes.
        """
        pictures = picture_patches(media, self._picture_rules)
        clips = clip_patches(media, self._clip_rules)
        with profile.part("tokenizer"):
            ids, tags = self.tokens(prompt, media, pictures, clips)
        input_ids = torch.tensor([ids], device=self._device)
        seen: dict[str, Tensor] = {}
        if pictures is not None:
            seen |= {"pixel_values": self._pixels(pictures), "image_grid_thw": pictures.grids.to(self._device)}
        if clips is not None:
            seen |= {"pixel_values_videos": self._pixels(clips), "video_grid_thw": clips.grids.to(self._device)}
        if seen:
            seen["mm_token_type_ids"] = self._kinds(input_ids)
        states = self._model(
            input_ids=input_ids, attention_mask=torch.ones_like(input_ids), use_cache=False, return_dict=True, **seen
        ).last_hidden_state
        return states, torch.tensor(tags, dtype=torch.int64)

    def tokens(
        self,
        prompt: str,
        media: tuple[MediaInput, ...] = (),
        pictures: Patches | None = None,
        clips: Patches | None = None,
    ) -> tuple[list[int], list[int]]:
        """Token ids and tags of the presentation: no template, no special tokens but those of vision, nothing cut.

        Raises:
            InvalidRequest: there are more than the encoder takes, or none.
        """
        ids: list[int] = []
        tags: list[int] = []
        for part in present(prompt, media):
            if isinstance(part, Text):
                piece = self._words(part.words)
                tag = TEXT_TAG
            else:
                patches, pad = (
                    (pictures, "image_token_id") if part.kind is MediaKind.IMAGE else (clips, "video_token_id")
                )
                count = 0 if patches is None else patches.tokens(part.index)
                piece = [self._special["vision_start_token_id"], *[self._special[pad]] * count]
                piece.append(self._special["vision_end_token_id"])
                tag = VIDEO_TAG
            ids += piece
            tags += [tag] * len(piece)
        if not 0 < len(ids) <= self._max_tokens:
            allowed = f"the text encoder takes 1 to {self._max_tokens} tokens, references counted"
            raise InvalidRequest("prompt", f"{len(ids)} tokens", allowed, hint="shorten the prompt")
        return ids, tags

    def _words(self, words: str) -> list[int]:
        # Not verbose: of a prompt that is too long we say it ourselves.
        ids: list[int] = self._tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"]
        seen = set(ids).intersection(self._special.values())
        if seen:
            # The encoder would look for the picture behind it.
            token = self._tokenizer.convert_ids_to_tokens(min(seen))
            raise InvalidRequest("prompt", token, "it stands for a picture or a clip, and words cannot hold one")
        return ids

    def _pixels(self, patches: Patches) -> Tensor:
        return patches.patches.to(device=self._device, dtype=self._model.dtype)

    def _kinds(self, input_ids: Tensor) -> Tensor:
        """0 for text, 1 for rows of pictures, 2 for rows of clips, as the encoder's positions want it."""
        kinds = (input_ids == self._special["image_token_id"]).int()
        return kinds + 2 * (input_ids == self._special["video_token_id"]).int()


def _special_ids(config: Any) -> list[tuple[str, int]]:
    """Ids of the tokens that stand for what is seen, as the encoder's own config has them."""
    return [
        ("image_token_id", config.image_token_id),
        ("video_token_id", config.video_token_id),
        ("vision_start_token_id", config.vision_start_token_id),
        ("vision_end_token_id", config.vision_end_token_id),
    ]


def _tokenizer(folder: Path) -> Any:
    from transformers import Qwen2TokenizerFast

    if not folder.is_dir():
        raise BadCheckpoint(folder.name, "the component's folder is missing")
    # The library makes an empty tokenizer of an empty folder and says nothing.
    if not ((folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file()):
        raise BadCheckpoint(folder.name, "holds no tokenizer", expected="tokenizer.json, or vocab.json and merges.txt")
    try:
        return Qwen2TokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # The library has no type of its own for a file that it cannot parse: it raises the bare one.
        raise BadCheckpoint(folder.name, f"holds no tokenizer that can be read ({type(error).__name__})") from error


def _check_vocabulary(tokenizer: Any, vocab_size: int, shown: str) -> None:
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= vocab_size:
        raise BadCheckpoint(
            shown, "has tokens that the text encoder does not know", expected=f"below {vocab_size}", found=str(highest)
        )


def _cut_config(files: ComponentFiles, num_layers: int) -> tuple[Any, int]:
    """The encoder's config with its later layers cut off, and how many it had."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import Qwen3VLConfig

    shown = f"{files.folder.name}/config.json"
    if files.config.get("model_type") != "qwen3_vl":
        found = repr(files.config.get("model_type"))
        raise BadCheckpoint(
            shown, "is of another kind of encoder", key="model_type", expected="'qwen3_vl'", found=found
        )
    try:
        config = Qwen3VLConfig.from_dict(dict(files.config))
    except (AttributeError, LookupError, StrictDataclassError, TypeError, ValueError) as error:
        raise BadCheckpoint(shown, f"has a value of another type ({_last_line(error)})") from error
    stored = config.text_config.num_hidden_layers
    if stored <= num_layers:
        # Of an encoder with just these layers the reference would read the state behind its final norm.
        raise BadCheckpoint(
            shown, "has too few layers", key="text_config.num_hidden_layers",
            expected=f"more than {num_layers}", found=str(stored),
        )  # fmt: skip
    config.text_config.num_hidden_layers = num_layers
    return config, int(stored)


def _built(config: Any, files: ComponentFiles) -> Any:
    from transformers import Qwen3VLModel

    try:
        model = build_empty(lambda: Qwen3VLModel._from_config(config, attn_implementation="sdpa"))
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        problem = f"describes an encoder that cannot be built ({type(error).__name__}: {_last_line(error)})"
        raise BadCheckpoint(f"{files.folder.name}/config.json", problem) from error
    model.language_model.norm = nn.Identity()
    return model


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2].strip()


def _wanted_key(key: str, *, behind: range, known: Collection[str]) -> str | None:
    """The module's name for a key; None for the layers `behind` the one that is read, if a layer has such a weight."""
    name = key.removeprefix("model.")
    layer = _LAYER.match(name)
    if layer is not None and int(layer[1]) in behind:
        twin = f"language_model.layers.0.{name[layer.end() :]}"
        return None if twin in known else name
    return None if name in _UNREAD else name
