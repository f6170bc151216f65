"""The text encoder is cut where the model reads, and what lies behind is never touched."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.tiny_h3 import text_encoder
from tools.mini_h3.build import write_tokenizer

from omnireel.errors import BadCheckpoint, InvalidRequest
from omnireel.models.minimax_h3.conditioner import Conditioner


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("conditioner")
    text_encoder(num_layers=4).save_pretrained(root / "text_encoder")
    write_tokenizer(root / "tokenizer")
    return root


@pytest.fixture
def root(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "c"))


def conditioner(root: Path, *, num_layers: int = 2, dtype: torch.dtype | None = torch.float32) -> Conditioner:
    folders = {name: root / name for name in ("text_encoder", "tokenizer", "processor")}
    return Conditioner(folders, num_layers=num_layers, device=torch.device("cpu"), dtype=dtype)


def edit(root: Path, change) -> None:
    file = root / "text_encoder" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_layers_behind_the_one_that_is_read_do_not_matter(root):
    before = conditioner(root).encode("a ball")[0]

    def change(tensors):
        for key in tensors:
            if (
                "layers.2." in key
                or "layers.3." in key
                or key in ("lm_head.weight", "model.language_model.norm.weight")
            ):
                tensors[key] = torch.full_like(tensors[key], torch.nan)

    edit(root, change)
    assert torch.equal(conditioner(root).encode("a ball")[0], before)


def test_layers_behind_are_not_built(root):
    assert len(conditioner(root)._model.language_model.layers) == 2


def test_tags_say_text_for_every_token(root):
    states, tags = conditioner(root).encode("abc")
    assert states.shape == (1, 3, 32)
    assert tags.tolist() == [1, 1, 1]


def test_the_type_is_the_one_asked_for(root):
    assert conditioner(root, dtype=torch.bfloat16).encode("abc")[0].dtype == torch.bfloat16


def test_a_prompt_over_the_limit_is_refused_and_not_cut(root):
    made = conditioner(root)
    assert len(made.tokens("a" * 512)[0]) == 512
    with pytest.raises(InvalidRequest, match=r"513 tokens.* 1 to 512"):
        made.tokens("a" * 513)


@pytest.mark.parametrize("num_layers", [4, 50])
def test_too_few_layers_are_refused(root, num_layers):
    with pytest.raises(BadCheckpoint, match=f"expected more than {num_layers}, found 4"):
        conditioner(root, num_layers=num_layers)


def test_another_encoder_is_refused(root):
    file = root / "text_encoder" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "llama"}))
    with pytest.raises(BadCheckpoint, match=r"qwen3_vl.*llama"):
        conditioner(root)


def test_an_unexpected_tensor_is_refused(root):
    edit(root, lambda tensors: tensors.update({"model.language_model.extra": torch.ones(1)}))
    with pytest.raises(BadCheckpoint, match=r"model\.language_model\.extra"):
        conditioner(root)


def test_a_missing_tensor_is_refused(root):
    edit(root, lambda tensors: tensors.pop("model.language_model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(BadCheckpoint, match=r"layers\.1\.mlp\.up_proj"):
        conditioner(root)


def test_a_missing_tokenizer_is_refused(root):
    shutil.rmtree(root / "tokenizer")
    with pytest.raises(BadCheckpoint, match="tokenizer"):
        conditioner(root)


def test_an_empty_tokenizer_folder_is_refused(root):
    shutil.rmtree(root / "tokenizer")
    (root / "tokenizer").mkdir()
    with pytest.raises(BadCheckpoint, match="tokenizer"):
        conditioner(root)


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>"])
def test_words_cannot_stand_for_a_picture(root, token):
    with pytest.raises(InvalidRequest, match="stands for a picture or a clip"):
        conditioner(root).encode(f"a {token} ball")


@pytest.mark.parametrize("layer", [3, 4, 99])
def test_a_later_layer_may_hold_only_what_a_layer_has(root, layer):
    name = "junk" if layer == 3 else "mlp.up_proj.weight"
    edit(root, lambda tensors: tensors.update({f"model.language_model.layers.{layer}.{name}": torch.ones(1)}))
    with pytest.raises(BadCheckpoint, match=rf"layers\.{layer}\.{name}"):
        conditioner(root)


def test_later_layers_need_not_be_there(root):
    before = conditioner(root).encode("a ball")[0]

    def drop(tensors):
        for key in [key for key in tensors if "layers.2." in key or "layers.3." in key or "lm_head" in key]:
            del tensors[key]

    edit(root, drop)
    assert torch.equal(conditioner(root).encode("a ball")[0], before)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"num_hidden_layers": "many"}, "num_hidden_layers"), ({"num_key_value_heads": 0}, "cannot be built")],
)
def test_an_encoder_config_that_cannot_be_is_refused(root, change, named):
    file = root / "text_encoder" / "config.json"
    config = json.loads(file.read_text())
    config["text_config"] |= change
    file.write_text(json.dumps(config))
    with pytest.raises(BadCheckpoint, match=f"text_encoder/config.json.*{named}"):
        conditioner(root)


@pytest.mark.parametrize("change", [{"model": {"type": "none"}}, {"pre_tokenizer": {"type": "none"}}, {"model": 5}])
def test_a_tokenizer_that_cannot_be_read_is_refused(root, change):
    file = root / "tokenizer" / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(BadCheckpoint, match="tokenizer: holds no tokenizer that can be read"):
        conditioner(root)


def test_tokens_that_the_encoder_does_not_know_are_refused(root):
    file = root / "tokenizer" / "tokenizer.json"
    tokens = json.loads(file.read_text())
    tokens["model"]["vocab"] = {name: number + 9000 for name, number in tokens["model"]["vocab"].items()}
    file.write_text(json.dumps(tokens))
    with pytest.raises(BadCheckpoint, match="tokenizer: has tokens that the text encoder does not know"):
        conditioner(root)


def test_a_number_type_that_torch_does_not_have_is_refused(root):
    file = root / "text_encoder" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"dtype": "x"}))
    with pytest.raises(BadCheckpoint, match=r"text_encoder/config\.json"):
        conditioner(root)


def test_the_library_says_nothing_of_a_prompt_that_is_too_long(root, monkeypatch):
    (root / "tokenizer" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 512}'
    )
    told: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("transformers.tokenization_utils_base"), "handle", told.append)
    with pytest.raises(InvalidRequest, match="600 tokens"):
        conditioner(root).encode("x" * 600)
    assert told == []
