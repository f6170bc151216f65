"""A tiny MiniMax-H3 checkpoint, saved by the public classes in the public layout, with 52 decoder layers as the real one has more than 50."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from tools.mini_h3.build import write_tokenizer
from torch import nn

TRANSFORMER: dict[str, Any] = {
    "num_attention_heads": 2, "attention_head_dim": 16, "hidden_size": 24, "num_layers": 2, "num_refiner_layers": 2,
    "ffn_dim": 32, "in_channels": 4, "audio_in_channels": 8, "patch_size": (1, 2, 2), "text_dim": 32, "freq_dim": 8,
    "time_embed_hidden_dim": 24, "time_embed_dim": 16, "rope_freq_dim": 2,
}  # fmt: skip
VIDEO_VAE: dict[str, Any] = {
    "latent_channels": 4, "block_out_channels": (8, 8, 8, 8, 8, 16), "layers_per_block": 1, "norm_num_groups": 8,
    "decoder_num_layers": 2, "decoder_num_attention_heads": 2, "decoder_attention_head_dim": 8,
    "decoder_num_register_tokens": 2, "decoder_ffn_mult": 2, "latents_mean": (0.1, -0.2, 0.3, 0.0),
    "latents_std": (1.1, 0.9, 1.3, 0.7),
}  # fmt: skip
AUDIO_VAE: dict[str, Any] = {
    "encoder_dim": 4, "encoder_rates": (2, 4, 4, 5, 5), "latent_dim": 32, "latent_channels": 8, "num_attention_heads": 2,
    "decoder_dim": 16, "decoder_rates": (10, 8, 10), "decoder_kernel_sizes": (20, 16, 20), "resblock_kernel_sizes": (3, 7),
    "resblock_dilation_sizes": ((1, 3), (1, 3)), "latents_mean": (0.1,) * 8, "latents_std": (1.5,) * 8,
}  # fmt: skip


def randomised(model: nn.Module, seed: int, *, scale: float = 1.0) -> Any:
    """Weights that matter everywhere: no norm stays at one, no layer scale at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                parameter.copy_((0.0 if name.endswith("bias") else 0.8) + 0.2 * noise)
            elif not name.endswith("weight_g"):
                parameter.copy_(scale * noise / parameter[0].numel() ** 0.5)
    return model.eval()


def text_encoder(*, num_layers: int = 52, seed: int = 3) -> Any:
    """A Qwen3-VL of tiny widths."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    config = Qwen3VLConfig(
        text_config={
            "vocab_size": 264, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": num_layers,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
        },
        vision_config={
            "depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 16, "temporal_patch_size": 2,
            "spatial_merge_size": 2, "out_hidden_size": 32, "num_position_embeddings": 64, "deepstack_visual_indexes": [0],
        },
        image_token_id=259, video_token_id=260, vision_start_token_id=257, vision_end_token_id=258,
        tie_word_embeddings=False,
    )  # fmt: skip
    return randomised(Qwen3VLForConditionalGeneration(config), seed)


def write_checkpoint(root: Path, *, seed: int = 0) -> Path:
    """The whole folder; returns it."""
    from diffusers import (
        AutoencoderKLMiniMaxH3,
        AutoencoderKLMiniMaxH3Audio,
        MiniMaxH3Scheduler,
        MiniMaxH3Transformer3DModel,
    )

    randomised(MiniMaxH3Transformer3DModel(**TRANSFORMER), seed).save_pretrained(root / "transformer")
    randomised(MiniMaxH3Transformer3DModel(**TRANSFORMER), seed + 9).save_pretrained(root / "transformer_ref")
    randomised(AutoencoderKLMiniMaxH3(**VIDEO_VAE), seed + 1).save_pretrained(root / "vae")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        audio_vae = AutoencoderKLMiniMaxH3Audio(**AUDIO_VAE)
    randomised(audio_vae, seed + 2, scale=0.5).save_pretrained(root / "audio_vae")
    text_encoder(seed=seed + 3).save_pretrained(root / "text_encoder")
    write_tokenizer(root / "tokenizer")
    MiniMaxH3Scheduler(shift=12.0).save_pretrained(root / "scheduler")
    MiniMaxH3Scheduler(shift=3.0).save_pretrained(root / "audio_scheduler")
    index = {
        "_class_name": "MiniMaxH3ModularPipeline",
        "_blocks_class_name": "MiniMaxH3Blocks",
        "canvas_short_edge": 32,
        "canvas_max_pixels": 32 * 64,
        "reference_image_short_edge": 64,
    }
    (root / "modular_model_index.json").write_text(json.dumps(index))
    return root
