"""Sizes of mini-h3's components, by their names in the published configs."""

from __future__ import annotations

from typing import Any

CONDITION_LAYER = 2
"""Decoder layers of the text encoder that are read; published checkpoints have more, so there is one behind them."""

TEXT_WIDTH = 128
SPECIAL_TOKENS = ("<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
NUM_WORDS = 597
"""Pieces of the tokenizer without the special ones: 256 bytes and all merges that the words of captions have."""

TRANSFORMER: dict[str, Any] = {
    "num_attention_heads": 4, "attention_head_dim": 48, "hidden_size": 192, "num_layers": 6, "num_refiner_layers": 1,
    "ffn_dim": 512, "in_channels": 24, "audio_in_channels": 32, "patch_size": (1, 2, 2), "text_dim": TEXT_WIDTH,
    "freq_dim": 64, "time_embed_hidden_dim": 128, "time_embed_dim": 32, "rope_freq_dim": 6,
}  # fmt: skip
VIDEO_VAE: dict[str, Any] = {
    "latent_channels": 24, "block_out_channels": (16, 24, 32, 48, 48, 48), "layers_per_block": 1, "norm_num_groups": 8,
    "decoder_num_layers": 4, "decoder_num_attention_heads": 4, "decoder_attention_head_dim": 48, "decoder_ffn_mult": 2,
    "decoder_rope_dim_ratio": 0.5,
}  # fmt: skip
AUDIO_VAE: dict[str, Any] = {
    "encoder_dim": 4, "latent_dim": 64, "num_attention_heads": 2, "decoder_dim": 256, "resblock_kernel_sizes": (3, 5),
    "resblock_dilation_sizes": ((1, 3), (1, 3)),
}  # fmt: skip
TEXT: dict[str, Any] = {
    "vocab_size": NUM_WORDS + len(SPECIAL_TOKENS), "hidden_size": TEXT_WIDTH, "intermediate_size": 256,
    "num_hidden_layers": CONDITION_LAYER + 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
    },
}  # fmt: skip
VISION: dict[str, Any] = {
    "depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "patch_size": 16, "temporal_patch_size": 2,
    "spatial_merge_size": 2, "out_hidden_size": TEXT_WIDTH, "num_position_embeddings": 256, "deepstack_visual_indexes": [],
}  # fmt: skip
