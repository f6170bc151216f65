"""The same weights give the same clip from either published layout, and back again."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.parity.test_conditions import MIXES
from tests.parity.test_text_to_video import context
from tests.support.mini import MINI
from tests.support.native_h3 import DIT_NAMES, VAE_NAMES, native_tensors, write_native
from tests.support.tiny_h3 import TRANSFORMER, VIDEO_VAE

from omnireel.attention.backends.torch_sdpa import BACKEND as TORCH_SDPA
from omnireel.errors import BadCheckpoint, BadSetting, InvalidRequest
from omnireel.media.prepare import media_facts, prepared
from omnireel.models.discover import admit, find_checkpoint, load_pipeline
from omnireel.models.minimax_h3.audio_autoencoder import AudioVaeConfig
from omnireel.models.minimax_h3.keymap import transformer_names, video_vae_names
from omnireel.models.minimax_h3.native import audio_vae_files, video_vae_files
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, TransformerConfig
from omnireel.models.minimax_h3.video_autoencoder import VideoAutoencoder, VideoVaeConfig
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaInput
from omnireel.weights import load_component, read_index

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def native(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_native(checkpoint, tmp_path_factory.mktemp("native"))


def run(path: Path, task_type: str = "auto", media: tuple[MediaInput, ...] = (), **build: Any) -> Any:
    # The context of another checkpoint: this one may be found by its task alone.
    built = dataclasses.replace(context(MINI), checkpoint=find_checkpoint(str(path), task_type=task_type), **build)
    sampling = DiffusionSamplingParams(
        height=32, width=32, num_frames=124, num_inference_steps=3, seed=3, output_type="latent"
    )
    request = GenerationRequest(prompt="a ball", media=media, sampling=sampling)
    facts = [media_facts(item, k) for k, item in enumerate(media)]
    work = admit(request, built.checkpoint, facts)
    loaded = tuple(prepared(item, plan) for item, plan in zip(media, work.media_plans, strict=True))
    work = dataclasses.replace(work, media=loaded)
    pipeline = load_pipeline(built)
    state = pipeline.prepare(work, pipeline.encode(work))
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
    return pipeline.decode(state).latents


@pytest.mark.slow
@pytest.mark.parametrize("task_type", ["auto", "combined", "t2va", "fl2va", "FL2VA"])
def test_a_text_gives_the_same_from_both_layouts(checkpoint, native, task_type):
    expected, made = run(checkpoint), run(native, task_type)
    for name in ("video", "audio"):
        assert np.array_equal(made[name], expected[name])


@pytest.mark.slow
@pytest.mark.parametrize("task_type", ["auto", "combined", "ref2va"])
def test_references_give_the_same_from_both_layouts(checkpoint, native, task_type):
    media = tuple(MIXES["clip, picture, recording"])
    expected, made = run(checkpoint, media=media), run(native, task_type, media)
    for name in ("video", "audio"):
        assert np.array_equal(made[name], expected[name])


@pytest.mark.slow
def test_a_partition_that_is_named_itself_is_served_alone(checkpoint, native):
    assert np.array_equal(run(native / "FL2VA")["video"], run(checkpoint)["video"])
    found = find_checkpoint(str(native / "Ref2VA"))
    with pytest.raises(InvalidRequest, match="no reference came"):
        admit(GenerationRequest(prompt="a ball"), found)


def as_file(place: Path) -> None:
    place.write_text("this is no folder")


def as_garbage(place: Path) -> None:
    (place / "transformer").mkdir(parents=True)
    for name in ("model_index.json", "transformer/config.json", "transformer/model.safetensors"):
        (place / name).write_text("{ garbage")


def as_nothing(place: Path) -> None:
    assert not place.exists()


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [as_file, as_garbage, as_nothing])
@pytest.mark.parametrize(("task_type", "other"), [("t2va", "Ref2VA"), ("fl2va", "Ref2VA"), ("ref2va", "FL2VA")])
def test_the_other_partition_is_never_opened(checkpoint, native, tmp_path, task_type, other, spoil):
    kept = "FL2VA" if other == "Ref2VA" else "Ref2VA"
    shutil.copytree(native / kept, tmp_path / kept)
    spoil(tmp_path / other)
    media = tuple(MIXES["picture"]) if task_type == "ref2va" else ()
    media = media or ((dataclasses.replace(MIXES["picture"][0], role="first_frame"),) if task_type == "fl2va" else ())
    assert np.array_equal(run(tmp_path, task_type, media)["video"], run(checkpoint, media=media)["video"])


@pytest.mark.slow
def test_stacked_weights_need_the_setting(checkpoint, tmp_path):
    stacked = write_native(checkpoint, tmp_path, is_stacked=True)
    expected = run(checkpoint)["video"]
    assert np.array_equal(run(stacked, native_qkv_order="stacked")["video"], expected)
    assert not np.array_equal(run(stacked)["video"], expected)


def loaded_transformer(folder: Path, order: str = "interleaved") -> MiniMaxH3Transformer:
    files = read_index(folder)
    config = TransformerConfig.from_dict(files.config)
    with torch.device("meta"):
        ours = MiniMaxH3Transformer(config, select=lambda *_: TORCH_SDPA)
    names = transformer_names(files, num_heads=config.num_attention_heads, qkv_order=order)
    load_component(ours, files, device=CPU, rename=names)
    return ours


def loaded_video_vae(folder: Path) -> VideoAutoencoder:
    files, told = video_vae_files(folder)
    config = VideoVaeConfig.from_dict(told)
    with torch.device("meta"):
        ours = VideoAutoencoder(config, backend=TORCH_SDPA)
    load_component(ours, files, device=CPU, rename=video_vae_names(files, num_heads=config.decoder_num_attention_heads))
    return ours


def stored(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*.safetensors")
    tensors: dict[str, torch.Tensor] = load_file(file)
    return tensors


def assert_same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [key for key in expected if not torch.equal(found[key], expected[key])] == []


@pytest.mark.parametrize("order", ["interleaved", "stacked"])
@pytest.mark.parametrize(("partition", "folder"), [("FL2VA", "transformer"), ("Ref2VA", "transformer_ref")])
def test_a_dit_goes_native_to_ours_and_back_exactly(checkpoint, native, tmp_path, partition, folder, order):
    root = native if order == "interleaved" else write_native(checkpoint, tmp_path, is_stacked=True)
    state = loaded_transformer(root / partition / "transformer", order).state_dict()
    assert_same(state, stored(checkpoint / folder))
    heads = TRANSFORMER["num_attention_heads"]
    back = native_tensors(dict(state), DIT_NAMES, heads, "qkv_proj", is_stacked=order == "stacked")
    expected = stored(root / partition / "transformer")
    del expected["rope.inv_freq"]
    assert_same(back, expected)


def test_a_video_vae_goes_native_to_ours_and_back_exactly(checkpoint, native):
    state = loaded_video_vae(native / "FL2VA" / "video_vae").state_dict()
    assert_same(state, stored(checkpoint / "vae"))
    back = native_tensors(dict(state), VAE_NAMES, VIDEO_VAE["decoder_num_attention_heads"], "to_qkv")
    expected = stored(native / "FL2VA" / "video_vae" / "source")
    del expected["decoder.mask_token"]
    assert_same(back, expected)


def test_configs_mean_the_same_in_both_layouts(checkpoint, native):
    ours, theirs = (
        VideoVaeConfig.from_dict(video_vae_files(folder)[1])
        for folder in (native / "FL2VA/video_vae", checkpoint / "vae")
    )
    assert ours == theirs
    sounds = [audio_vae_files(folder)[1] for folder in (native / "FL2VA/audio_vae", checkpoint / "audio_vae")]
    assert AudioVaeConfig.from_dict(sounds[0]) == AudioVaeConfig.from_dict(sounds[1])
    dits = [read_index(folder).config for folder in (native / "FL2VA/transformer", checkpoint / "transformer")]
    assert TransformerConfig.from_dict(dits[0]) == TransformerConfig.from_dict(dits[1])


def test_the_public_classes_take_our_weights_back(native):
    from diffusers import AutoencoderKLMiniMaxH3, MiniMaxH3Transformer3DModel

    ours = loaded_transformer(native / "FL2VA" / "transformer")
    MiniMaxH3Transformer3DModel(**TRANSFORMER).load_state_dict(ours.state_dict(), strict=True)
    vae = loaded_video_vae(native / "FL2VA" / "video_vae")
    AutoencoderKLMiniMaxH3(**VIDEO_VAE).load_state_dict(vae.state_dict(), strict=True)


def test_an_unknown_start_up_task_lists_the_known(native):
    with pytest.raises(BadSetting, match="auto or combined or t2va or fl2va or ref2va"):
        find_checkpoint(str(native), task_type="i2v")


@pytest.mark.parametrize("task_type", ["ref2va", "combined"])
def test_a_partition_that_is_not_there_is_named(native, tmp_path, task_type):
    (tmp_path / "FL2VA").symlink_to(native / "FL2VA")
    with pytest.raises(BadCheckpoint, match="Ref2VA"):
        admit(GenerationRequest(prompt="a ball"), find_checkpoint(str(tmp_path), task_type=task_type))


def test_a_service_without_references_says_so(native):
    found = find_checkpoint(str(native), task_type="t2va")
    request = GenerationRequest(prompt="a", media=tuple(MIXES["picture"]))
    facts = [media_facts(item, k) for k, item in enumerate(MIXES["picture"])]
    with pytest.raises(InvalidRequest, match="this service runs t2va, fl2va"):
        admit(request, found, facts)


def test_a_partition_under_a_wrong_name_is_refused(native, tmp_path):
    (tmp_path / "FL2VA").symlink_to(native / "Ref2VA")
    with pytest.raises(BadCheckpoint, match="another partition"):
        admit(GenerationRequest(prompt="a ball"), find_checkpoint(str(tmp_path), task_type="t2va"))


def test_pruned_weights_are_refused(native, tmp_path):
    files = read_index(native / "FL2VA" / "transformer")
    pruned = dataclasses.replace(files, tensors={"adaln_t_table": next(iter(files.tensors.values()))})
    with pytest.raises(BadCheckpoint, match="pruned"):
        transformer_names(pruned, num_heads=2, qkv_order="interleaved")


@pytest.mark.parametrize("schedule", ["0.999,0.749,0.5,0.25,0", [1.0, 0.5, 0.0]])
def test_a_pinned_schedule_takes_no_other_steps(native, tmp_path, schedule):
    shutil.copytree(native / "FL2VA", tmp_path / "FL2VA")
    file = tmp_path / "FL2VA" / "model_index.json"
    index = json.loads(file.read_text())
    index["_minimax_h3"]["base_schedule"] = schedule
    file.write_text(json.dumps(index))
    found = find_checkpoint(str(tmp_path), task_type="t2va")
    points = 5 if isinstance(schedule, str) else 3
    assert admit(GenerationRequest(prompt="a"), found).num_steps == points - 1
    with pytest.raises(InvalidRequest, match="num_inference_steps"):
        admit(GenerationRequest(prompt="a", sampling=DiffusionSamplingParams(num_inference_steps=20)), found)
    pipeline = load_pipeline(dataclasses.replace(context(tmp_path), checkpoint=found))
    work = admit(
        GenerationRequest(prompt="a", sampling=DiffusionSamplingParams(height=32, width=32, num_frames=96)), found
    )
    assert pipeline.prepare(work, pipeline.encode(work)).num_steps == points - 1
