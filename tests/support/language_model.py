"""A language model of a few thousand random weights, as transformers stores one, with a tokenizer of bytes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tools.mini_h3.build import write_tokenizer

CHAT = "{% for turn in messages %}[{{ turn.role }}] {{ turn.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"


def write_language_model(folder: Path, *, is_chat: bool = True, seed: int = 0) -> Path:
    """The folder, filled."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text()) if _has(folder) else {}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, **({"chat_template": CHAT} if is_chat else {})})
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.4) if weight.dim() > 1 else None
    model.save_pretrained(folder)
    return folder


def _has(folder: Path) -> bool:
    return (folder / "tokenizer_config.json").is_file()
