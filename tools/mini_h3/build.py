"""Writes mini-h3, a MiniMax-H3 small enough to travel inside the package, in the diffusers modular layout.

    python tools/mini_h3/build.py --output src/omnireel/models/minimax_h3/mini

Weights come from `initial.py`; the same seed gives the same files. Only the classes that define the published layout are
used to make and save it, so what it proves of the loader is real.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.mini_h3.architecture import CONDITION_LAYER, SPECIAL_TOKENS
from tools.mini_h3.initial import Draw, attend_to_words, fill, sing, smooth_picture

TRANSFORMER: dict[str, Any] = {
    "num_attention_heads": 4, "attention_head_dim": 64, "hidden_size": 128, "num_layers": 4, "num_refiner_layers": 1,
    "ffn_dim": 256, "in_channels": 24, "audio_in_channels": 32, "patch_size": (1, 2, 2), "text_dim": 64, "freq_dim": 64,
    "time_embed_hidden_dim": 64, "time_embed_dim": 32, "rope_freq_dim": 8,
}  # fmt: skip
FLOAT32_PARTS = ("proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out")
VIDEO_VAE: dict[str, Any] = {
    "latent_channels": 24, "block_out_channels": (8, 8, 8, 16, 16, 16), "layers_per_block": 1, "norm_num_groups": 8,
    "decoder_num_layers": 2, "decoder_num_attention_heads": 4, "decoder_attention_head_dim": 32, "decoder_ffn_mult": 1,
}  # fmt: skip
AUDIO_VAE: dict[str, Any] = {
    "encoder_dim": 2, "latent_dim": 64, "num_attention_heads": 2, "decoder_dim": 128, "resblock_kernel_sizes": (3, 5),
    "resblock_dilation_sizes": ((1, 3), (1, 3)), "latents_mean": (0.0,) * 32, "latents_std": (1.0,) * 32,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "vocab_size": 264, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": CONDITION_LAYER + 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
    },
}  # fmt: skip
VISION: dict[str, Any] = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 16, "temporal_patch_size": 2,
    "spatial_merge_size": 2, "out_hidden_size": 64, "num_position_embeddings": 256, "deepstack_visual_indexes": [],
}  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="directory to write; an existing one is replaced")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.output, ignore_errors=True)
    build(arguments.output, seed=arguments.seed)
    size = sum(path.stat().st_size for path in arguments.output.rglob("*") if path.is_file())
    print(f"{arguments.output}: {size / 1e6:.2f} MB")


def build(output: Path, *, seed: int) -> None:
    """Writes the whole checkpoint into a new directory."""
    output.mkdir(parents=True)
    _save(_transformer(Draw(seed, "transformer")), output / "transformer", float32_parts=FLOAT32_PARTS)
    _save(_video_vae(Draw(seed, "vae")), output / "vae")
    _save(_audio_vae(Draw(seed, "audio_vae")), output / "audio_vae", dtype=torch.float16)
    _save_text_encoder(output / "text_encoder", Draw(seed, "text_encoder"))
    write_tokenizer(output / "tokenizer")
    for folder, shift in (("scheduler", 12.0), ("audio_scheduler", 3.0)):
        _write_json(output / folder / "scheduler_config.json", {"_class_name": "MiniMaxH3Scheduler", "shift": shift})
    _write_json(output / "modular_model_index.json", _index())
    for path in output.rglob("*.safetensors"):
        path.chmod(0o644)


def _transformer(draw: Draw) -> Any:
    from diffusers import MiniMaxH3Transformer3DModel

    transformer = MiniMaxH3Transformer3DModel(**TRANSFORMER)
    fill(transformer, draw)
    attend_to_words(transformer, draw, share=0.35, shift=1.0, sharpness=2.0)
    return transformer


def _video_vae(draw: Draw) -> Any:
    from diffusers import AutoencoderKLMiniMaxH3

    vae = AutoencoderKLMiniMaxH3(**VIDEO_VAE)
    fill(vae, draw)
    smooth_picture(vae, draw, gain=17.0, kept_mean=0.25, tint=(0.8, 0.6, -2.0))
    return vae


def _audio_vae(draw: Draw) -> Any:
    from diffusers import AutoencoderKLMiniMaxH3Audio

    with warnings.catch_warnings():
        # The published weights have the names of torch's older weight norm, which warns that it is old.
        warnings.simplefilter("ignore", FutureWarning)
        vae = AutoencoderKLMiniMaxH3Audio(**AUDIO_VAE)
    fill(vae, draw)
    sing(vae, draw, gain=0.12)
    return vae


def _save(
    model: Any, folder: Path, *, dtype: torch.dtype = torch.bfloat16, float32_parts: tuple[str, ...] = ()
) -> None:
    """Weights as the class names them, and its config as the class writes it."""
    folder.mkdir(parents=True)
    tensors = {}
    for name, tensor in model.state_dict().items():
        kept = not tensor.is_floating_point() or set(name.split(".")) & set(float32_parts)
        tensors[name] = tensor.contiguous() if kept else tensor.to(dtype).contiguous()
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})
    model.save_config(folder)


def _save_text_encoder(folder: Path, draw: Draw) -> None:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    ids = {name: 256 + k for k, name in enumerate(SPECIAL_TOKENS)}
    config = Qwen3VLConfig(
        text_config=TEXT,
        vision_config=VISION,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config)
    fill(model, draw)
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
        "vae": ("diffusers", "AutoencoderKLMiniMaxH3"),
        "audio_vae": ("diffusers", "AutoencoderKLMiniMaxH3Audio"),
        "scheduler": ("diffusers", "MiniMaxH3Scheduler"),
        "audio_scheduler": ("diffusers", "MiniMaxH3Scheduler"),
        "text_encoder": ("transformers", "Qwen3VLForConditionalGeneration"),
        "tokenizer": ("transformers", "Qwen2TokenizerFast"),
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
        "_omnireel": {"condition_layer": CONDITION_LAYER, "default_num_frames": 107, "default_num_inference_steps": 20},
        **entries,
    }


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
