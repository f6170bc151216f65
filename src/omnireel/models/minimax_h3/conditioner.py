"""Words to the states that the DiT reads: Qwen3-VL, run up to one decoder layer and no further.

The residual stream behind that layer is the condition, without the final norm; layers behind it are neither read from the
disk nor built. Letters: L text rows, C channels of a state.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnireel.errors import BadCheckpoint, InvalidRequest
from omnireel.models.minimax_h3.packing import TEXT_TAG
from omnireel.weights import ComponentFiles, build_empty, load_component, read_index

_LAYER = re.compile(r"language_model\.layers\.(\d+)\.")


class Conditioner:
    """The tokenizer and the cut text encoder.

    Args:
        root: the checkpoint's directory.
        num_layers: decoder layers that are run.
        device: where the encoder runs.
        dtype: type of its weights; None keeps the stored types.
    """

    def __init__(self, root: Path, *, num_layers: int, device: torch.device, dtype: torch.dtype | None) -> None:
        self.files = read_index(root / "text_encoder")
        self._device = device
        self._tokenizer = _tokenizer(root / "tokenizer")
        config = _cut_config(self.files, num_layers)
        self._max_tokens = int(config.text_config.max_position_embeddings)
        self._model = _built(config)
        load_component(
            self._model,
            self.files,
            device=device,
            rename=lambda key: _wanted_key(key, num_layers),
            dtype_of=lambda _, stored: stored if dtype is None else dtype,
        )
        self._model.eval()

    def tokens(self, prompt: str) -> list[int]:
        """The prompt's token ids: no template, no special tokens, nothing cut.

        Raises:
            InvalidRequest: there are more than the encoder takes, or none.
        """
        ids: list[int] = self._tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if not 0 < len(ids) <= self._max_tokens:
            allowed = f"the text encoder takes 1 to {self._max_tokens} tokens"
            raise InvalidRequest("prompt", f"{len(ids)} tokens", allowed, hint="shorten the prompt")
        return ids

    def encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        """States [1,L,C] in the encoder's type on its device, and the tag of each text row, int64 [L] on the CPU."""
        ids = self.tokens(prompt)
        input_ids = torch.tensor([ids], device=self._device)
        states = self._model(
            input_ids=input_ids, attention_mask=torch.ones_like(input_ids), use_cache=False, return_dict=True
        ).last_hidden_state
        return states, torch.full((len(ids),), TEXT_TAG, dtype=torch.int64)


def _tokenizer(folder: Path) -> Any:
    from transformers import Qwen2TokenizerFast

    if not folder.is_dir():
        raise BadCheckpoint(folder.name, "the component's folder is missing")
    # The library makes an empty tokenizer of an empty folder and says nothing.
    if not ((folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file()):
        raise BadCheckpoint(folder.name, "holds no tokenizer", expected="tokenizer.json, or vocab.json and merges.txt")
    try:
        return Qwen2TokenizerFast.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise BadCheckpoint(folder.name, f"holds no tokenizer that can be read ({type(error).__name__})") from error


def _cut_config(files: ComponentFiles, num_layers: int) -> Any:
    from transformers import Qwen3VLConfig

    shown = f"{files.folder.name}/config.json"
    if files.config.get("model_type") != "qwen3_vl":
        found = repr(files.config.get("model_type"))
        raise BadCheckpoint(
            shown, "is of another kind of encoder", key="model_type", expected="'qwen3_vl'", found=found
        )
    config = Qwen3VLConfig.from_dict(dict(files.config))
    stored = config.text_config.num_hidden_layers
    if stored <= num_layers:
        # Of an encoder with just these layers the reference would read the state behind its final norm.
        raise BadCheckpoint(
            shown, "has too few layers", key="text_config.num_hidden_layers",
            expected=f"more than {num_layers}", found=str(stored),
        )  # fmt: skip
    config.text_config.num_hidden_layers = num_layers
    return config


def _built(config: Any) -> Any:
    from transformers import Qwen3VLModel

    model = build_empty(lambda: Qwen3VLModel._from_config(config, attn_implementation="sdpa"))
    model.language_model.norm = nn.Identity()
    return model


def _wanted_key(key: str, num_layers: int) -> str | None:
    name = key.removeprefix("model.")
    layer = _LAYER.match(name)
    behind = layer is not None and int(layer[1]) >= num_layers
    return None if behind or name in ("language_model.norm.weight", "lm_head.weight") else name
