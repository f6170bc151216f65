"""Writes mini-h3, a MiniMax-H3 small enough to travel inside the package, in the diffusers modular layout.

    python tools/mini_h3/build.py --video VIDEO.pt --audio AUDIO.pt --dits FOLDER --output src/omnireel/models/minimax_h3/mini

Weights are what `train_vaes.py` and `train_dit.py` left. Only the classes that define the published layout are used to make
and save it, so what it proves of the loader is real.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.mini_h3.architecture import SPECIAL_TOKENS

from tools.mini_h3 import architecture

FLOAT32_PARTS = ("proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out")
MIN_SEEN_PIXELS, MAX_SEEN_PIXELS = 32 * 32, 4096 * 4096
"""Of a picture for the text encoder: ours are looked at as they are."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--video", type=Path, required=True, help="state of the trained video VAE")
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--dits", type=Path, required=True, help="folder with text.pt, clip.pt and reference.pt")
    parser.add_argument("--output", type=Path, required=True, help="directory to write; an existing one is replaced")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.output, ignore_errors=True)
    vaes = [_load(path)["model"] for path in (arguments.video, arguments.audio)]
    text, clip, reference = (_load(arguments.dits / f"{name}.pt") for name in ("text", "clip", "reference"))
    build(arguments.output, video=vaes[0], audio=vaes[1], text=text, clip=clip, reference=reference)
    size = sum(path.stat().st_size for path in arguments.output.rglob("*") if path.is_file())
    print(f"{arguments.output}: {size / 1e6:.2f} MB")


def _load(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


State = Mapping[str, Tensor]


def build(output: Path, *, video: State, audio: State, text: Mapping[str, Any], clip: State, reference: State) -> None:
    """Writes the whole checkpoint into a new directory.

    text: `text` and `vision`, states of the text encoder, and the statistics of latents that the DiTs were trained with.
    """
    from tools.mini_h3.words import learn_merges

    output.mkdir(parents=True)
    for name, state in (("transformer", clip), ("transformer_ref", reference)):
        _save(new_transformer(), state, output / name, float32_parts=FLOAT32_PARTS)
    _save(new_video_vae(text), video, output / "vae")
    _save(new_audio_vae(text), audio, output / "audio_vae", dtype=torch.float16)
    _save_text_encoder(output / "text_encoder", text)
    write_tokenizer(output / "tokenizer", learn_merges())
    seen = {
        "size": {"shortest_edge": MIN_SEEN_PIXELS, "longest_edge": MAX_SEEN_PIXELS},
        "patch_size": architecture.VISION["patch_size"], "merge_size": architecture.VISION["spatial_merge_size"],
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        _write_json(output / "processor" / name, seen)
    for folder, shift in (("scheduler", 12.0), ("audio_scheduler", 3.0)):
        _write_json(output / folder / "scheduler_config.json", {"_class_name": "MiniMaxH3Scheduler", "shift": shift})
    _write_json(output / "modular_model_index.json", _index())
    for path in output.rglob("*.safetensors"):
        path.chmod(0o644)


def new_transformer() -> Any:
    """The DiT's class with mini-h3's sizes."""
    from diffusers import MiniMaxH3Transformer3DModel

    return MiniMaxH3Transformer3DModel(**architecture.TRANSFORMER)


def new_video_vae(statistics: Mapping[str, Any]) -> Any:
    """The video VAE's class with mini-h3's sizes and the statistics of its latents."""
    from diffusers import AutoencoderKLMiniMaxH3

    return AutoencoderKLMiniMaxH3(**architecture.VIDEO_VAE, **_statistics(statistics, "video"))


def new_audio_vae(statistics: Mapping[str, Any]) -> Any:
    """The audio VAE's class with mini-h3's sizes and the statistics of its latents."""
    from diffusers import AutoencoderKLMiniMaxH3Audio

    with warnings.catch_warnings():
        # The published weights have the names of torch's older weight norm, which warns that it is old.
        warnings.simplefilter("ignore", FutureWarning)
        return AutoencoderKLMiniMaxH3Audio(**architecture.AUDIO_VAE, **_statistics(statistics, "audio"))


def _statistics(told: Mapping[str, Any], medium: str) -> dict[str, tuple[float, ...]]:
    return {f"latents_{kind}": tuple(told[f"{medium}_{kind}"].float().tolist()) for kind in ("mean", "std")}


def _save(
    model: Any, state: State, folder: Path, *, dtype: torch.dtype = torch.bfloat16, float32_parts: tuple[str, ...] = ()
) -> None:
    """Weights as the class names them, and its config as the class writes it."""
    model.load_state_dict(state)
    folder.mkdir(parents=True)
    tensors = {}
    for name, tensor in model.state_dict().items():
        kept = not tensor.is_floating_point() or set(name.split(".")) & set(float32_parts)
        tensors[name] = tensor.contiguous() if kept else tensor.to(dtype).contiguous()
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})
    model.save_config(folder)


def _save_text_encoder(folder: Path, text: Mapping[str, Any]) -> None:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    ids = {name: architecture.NUM_WORDS + k for k, name in enumerate(SPECIAL_TOKENS)}
    config = Qwen3VLConfig(
        text_config=architecture.TEXT,
        vision_config=architecture.VISION,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        # Behind the layers that are read there is one that is not; it holds nothing.
        for parameter in model.model.language_model.layers[architecture.CONDITION_LAYER :].parameters():
            parameter.zero_()
    missing, unknown = model.model.language_model.load_state_dict(text["text"], strict=False)
    unread = ("norm.weight", f"layers.{architecture.CONDITION_LAYER}.")
    if unknown or any(not name.startswith(unread) for name in missing):
        raise SystemExit(f"the text encoder's state does not fit: {missing} {unknown}")
    model.model.visual.load_state_dict(text["vision"])
    model.to(torch.bfloat16).save_pretrained(folder)
    # Versions of the library do not belong into files that are to be the same everywhere.
    (folder / "generation_config.json").unlink(missing_ok=True)
    saved = json.loads((folder / "config.json").read_text())
    del saved["transformers_version"]
    _write_json(folder / "config.json", saved)


def write_tokenizer(folder: Path, merges: Sequence[tuple[str, str]] = ()) -> None:
    """A byte-level tokenizer: a token a byte, one a merge, and the special tokens behind them."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate([*alphabet, *("".join(merge) for merge in merges)])}
    added = [
        {
            "id": len(vocab) + k,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for k, name in enumerate(SPECIAL_TOKENS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": bool(merges)}
    _write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
            "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
                "merges": [list(merge) for merge in merges],
            },
        },
    )  # fmt: skip
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer", "pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "bos_token": None,
            "unk_token": None, "add_prefix_space": False, "clean_up_tokenization_spaces": False, "model_max_length": 4096,
        },
    )  # fmt: skip


def _index() -> dict[str, Any]:
    """The pipeline index, with what only a miniature declares in the block `_omnireel`."""
    parts = {
        "transformer": ("diffusers", "MiniMaxH3Transformer3DModel"),
        "transformer_ref": ("diffusers", "MiniMaxH3Transformer3DModel"),
        "vae": ("diffusers", "AutoencoderKLMiniMaxH3"),
        "audio_vae": ("diffusers", "AutoencoderKLMiniMaxH3Audio"),
        "scheduler": ("diffusers", "MiniMaxH3Scheduler"),
        "audio_scheduler": ("diffusers", "MiniMaxH3Scheduler"),
        "text_encoder": ("transformers", "Qwen3VLForConditionalGeneration"),
        "tokenizer": ("transformers", "Qwen2TokenizerFast"),
        "processor": ("transformers", "Qwen3VLProcessor"),
    }
    entries = {
        name: [
            library,
            kind,
            {
                "type_hint": [library, kind],
                "pretrained_model_name_or_path": None,
                "subfolder": name,
                "variant": None,
                "revision": None,
            },
        ]
        for name, (library, kind) in parts.items()
    }
    return {
        "_class_name": "MiniMaxH3ModularPipeline",
        "_blocks_class_name": "MiniMaxH3Blocks",
        "_diffusers_version": "0.42.1",
        "canvas_short_edge": 128,
        "canvas_max_pixels": 24576,
        "reference_image_short_edge": 128,
        "_omnireel": {
            "condition_layer": architecture.CONDITION_LAYER, "default_num_frames": 107,
            "default_reference_num_frames": 107, "default_num_inference_steps": 20,
        },
        **entries,
    }  # fmt: skip


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
