"""The pipeline on the embedded checkpoint: what repeats, what differs, and what a broken folder says."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.mini import MINI
from torch._dynamo.testing import CompileCounterWithBackend

from omnireel.acceleration import Acceleration, compile_blocks
from omnireel.attention import AttentionConfig, AttentionSpec
from omnireel.attention.backends import rainfusion_attn
from omnireel.attention.backends.torch_sdpa import attend
from omnireel.attention.options import BlockSparseSpec
from omnireel.errors import BadCheckpoint, BadSetting, NonFinite
from omnireel.layers import PLAIN
from omnireel.models.discover import admit, find_checkpoint, load_pipeline
from omnireel.models.minimax_h3 import pipeline as pipeline_file
from omnireel.models.minimax_h3 import video_vae as video_vae_file
from omnireel.models.protocol import BuildContext
from omnireel.platforms import find_platform
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaInput, MediaKind


def built(context: BuildContext) -> Any:
    """The pipeline with its insides open."""
    return load_pipeline(context)


def context(name: str = "mini-h3", *, dtype: str = "float32", attention: AttentionConfig | None = None) -> BuildContext:
    return BuildContext(
        checkpoint=find_checkpoint(name),
        platform=find_platform("cpu"),
        device="cpu",
        dtype=dtype,
        attention=attention or AttentionConfig(),
    )


@pytest.fixture(scope="module")
def pipeline():
    return load_pipeline(context())


def workload(**sampling):
    chosen: dict[str, Any] = {
        "height": 32,
        "width": 64,
        "num_frames": 107,
        "num_inference_steps": 4,
        "seed": 1,
        "output_type": "latent",
    } | sampling
    request = GenerationRequest(prompt="a ball", sampling=DiffusionSamplingParams(**chosen))
    return admit(request, find_checkpoint("mini-h3"))


def run(pipeline, **sampling):
    work = workload(**sampling)
    state = pipeline.prepare(work, pipeline.encode(work))
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
    return pipeline.decode(state)


def test_the_same_seed_gives_the_same_latents_and_another_does_not(pipeline):
    first, again, other = run(pipeline), run(pipeline), run(pipeline, seed=2)
    for name in ("video", "audio"):
        assert np.array_equal(first.latents[name], again.latents[name])
        assert not np.array_equal(first.latents[name], other.latents[name])


def test_latents_have_the_shapes_of_the_vaes(pipeline):
    latents = run(pipeline).latents
    assert latents["video"].shape == (1, 24, 32, 2, 4)
    assert latents["audio"].shape == (2, 32, 178)


def test_shifts_and_prompt_change_the_result(pipeline):
    plain = run(pipeline).latents["video"]
    assert not np.array_equal(plain, run(pipeline, flow_shift=3.0).latents["video"])
    assert not np.array_equal(run(pipeline).latents["audio"], run(pipeline, audio_flow_shift=9.0).latents["audio"])


def test_frames_and_sound_have_the_sizes_asked_for(pipeline):
    output = run(pipeline, output_type="frames")
    assert output.frames.shape == (107, 32, 64, 3)
    assert output.frames.dtype == np.uint8
    assert output.wave.shape == (2, 178 * 800)
    assert (output.fps, output.sample_rate_hz) == (24.0, 32_000)


def test_a_preview_is_one_frame_of_the_clip_and_changes_nothing(pipeline):
    work = workload()
    state = pipeline.prepare(work, pipeline.encode(work))
    assert pipeline.preview(state) is None
    state = pipeline.step(state)
    rows = state.video_rows.clone()
    assert pipeline.preview(state).shape == (32, 64, 3)
    assert torch.equal(state.video_rows, rows)


def test_the_preview_after_the_last_step_shows_the_clip(pipeline):
    work = workload()
    state = pipeline.prepare(work, pipeline.encode(work))
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
    assert torch.equal(pipeline._clean_video(state).flatten().sort()[0], state.video_rows.flatten().sort()[0])


def test_bfloat16_keeps_the_parts_that_must_be_float32():
    made = built(context(dtype="bfloat16"))._transformers["transformer"]
    types = {name: parameter.dtype for name, parameter in made.named_parameters()}
    assert types["proj_in.weight"] == types["time_embedder.linear_1.bias"] == torch.float32
    assert types["transformer_blocks.0.ff.net.0.proj.weight"] == torch.bfloat16


def test_an_attention_backend_that_cannot_serve_is_refused_at_build():
    chosen = AttentionConfig(default=AttentionSpec(backend="CUDNN_ATTN"))
    with pytest.raises(BadSetting, match="CUDNN_ATTN"):
        load_pipeline(context(attention=chosen))


def test_no_weight_lands_on_an_ambient_device():
    with torch.device("meta"):
        made = built(context())
    assert not made._video_vae._vae.decoder.proj_out.weight.is_meta


@pytest.mark.parametrize("component", ["transformer", "text_encoder", "vae", "audio_vae", "tokenizer"])
def test_a_missing_component_is_named(tmp_path, component):
    root = Path(shutil.copytree(MINI, tmp_path / "broken"))
    shutil.rmtree(root / component)
    with pytest.raises(BadCheckpoint, match=component):
        load_pipeline(context(str(root)))


@pytest.mark.parametrize("component", ["transformer", "text_encoder", "vae", "audio_vae"])
def test_a_cut_short_weight_file_is_named(tmp_path, component):
    root = Path(shutil.copytree(MINI, tmp_path / "broken"))
    (file,) = (root / component).glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BadCheckpoint, match=f"{component}/{file.name}: .*cut short"):
        load_pipeline(context(str(root)))


def test_a_transformer_config_with_an_unknown_key_is_refused(tmp_path):
    root = Path(shutil.copytree(MINI, tmp_path / "broken"))
    file = root / "transformer" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_experts": 8}))
    with pytest.raises(BadCheckpoint, match="num_experts"):
        load_pipeline(context(str(root)))


def test_a_vae_without_statistics_is_refused(tmp_path):
    root = Path(shutil.copytree(MINI, tmp_path / "broken"))
    file = root / "audio_vae" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"latents_mean": None}))
    with pytest.raises(BadCheckpoint, match="latents_mean"):
        load_pipeline(context(str(root)))


def test_the_digest_follows_the_weights(tmp_path, pipeline):
    root = Path(shutil.copytree(MINI, tmp_path / "other"))
    assert load_pipeline(context(str(root))).weights_digest == pipeline.weights_digest
    (file,) = (root / "vae").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert load_pipeline(context(str(root))).weights_digest != pipeline.weights_digest


def test_progress_is_the_video_sigma_of_the_step(pipeline):
    work = workload()
    state = pipeline.prepare(work, pipeline.encode(work))
    assert state.progress is None
    seen = []
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
        seen.append(state.progress)
    assert seen == [float(sigma) for sigma in state.video_schedule.sigmas[:-1]]
    assert seen[0] == 1.0


def test_a_value_that_is_not_finite_is_named_when_asked_for():
    checked = load_pipeline(dataclasses.replace(context(), validate_finite_tensors=True))
    work = workload()
    state = checked.step(checked.prepare(work, checked.encode(work)))
    state.audio_rows = torch.full_like(state.audio_rows, torch.nan)
    with pytest.raises(NonFinite, match="video velocity holds values that are not finite after step 2"):
        checked.step(state)


def test_looking_for_such_values_changes_nothing(pipeline):
    checked = load_pipeline(dataclasses.replace(context(), validate_finite_tensors=True))
    assert np.array_equal(run(checked).latents["video"], run(pipeline).latents["video"])


def test_a_kept_prompt_gives_the_same_clip(pipeline):
    keeping = load_pipeline(dataclasses.replace(context(), prompt_embed_cache_size=2))
    expected = run(pipeline).latents["video"]
    assert np.array_equal(run(keeping).latents["video"], expected)
    assert np.array_equal(run(keeping).latents["video"], expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_default_type_of_the_program_around_changes_nothing(pipeline, dtype):
    expected = run(pipeline).latents
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        made = run(built(context())).latents
    finally:
        torch.set_default_dtype(usual)
    for name in ("video", "audio"):
        assert made[name].dtype == np.float32
        assert np.array_equal(made[name], expected[name])


def test_the_random_state_of_the_program_around_is_left_alone(pipeline):
    before = torch.get_rng_state()
    run(pipeline)
    assert torch.equal(torch.get_rng_state(), before)


def test_modulation_tables_change_no_bit(pipeline):
    in_place = load_pipeline(dataclasses.replace(context(), acceleration=Acceleration(modulation_tables="off")))
    first, second = run(pipeline), run(in_place)
    for name in ("video", "audio"):
        assert np.array_equal(first.latents[name], second.latents[name])


def test_a_second_request_of_the_same_schedule_makes_no_table(pipeline):
    run(pipeline)
    tables = next(iter(pipeline._tables.values()))
    made = tables.num_made
    run(pipeline, seed=5, height=64, num_frames=124)
    assert tables.num_made == made


@pytest.mark.parametrize(("switch", "is_warm"), [("fused_kernels", True), ("cuda_graphs", False)])
def test_what_is_compiled_when_first_used_is_warmed_up(monkeypatch, switch, is_warm):
    warmed: list[Any] = []

    def warm_up(made):
        warmed.append(made)

    monkeypatch.setattr(pipeline_file.MiniMaxH3Pipeline, "warm_up", warm_up)
    monkeypatch.setattr(pipeline_file, "denoiser_kernels", lambda context: PLAIN)
    monkeypatch.setattr(pipeline_file, "vae_kernels", lambda context: PLAIN)
    monkeypatch.setattr(pipeline_file, "evaluations", lambda transformers, context, index: {})
    said: dict[str, Any] = {switch: "on"}
    speed = Acceleration(warm_up=True, **said)
    load_pipeline(dataclasses.replace(context(), acceleration=speed))
    assert bool(warmed) is is_warm


def test_a_decoder_alone_can_be_compiled(monkeypatch, pipeline):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(video_vae_file, "compile_blocks", partial(compile_blocks, backend=counter))
    compiled = load_pipeline(dataclasses.replace(context(), acceleration=Acceleration(compile_vae="on", warm_up=True)))
    warm = counter.frame_count
    made = run(compiled, output_type="frames")
    assert np.abs(made.frames.astype(int) - run(pipeline, output_type="frames").frames).max() <= 1
    assert 0 < warm == counter.frame_count
    torch._dynamo.reset()


def test_after_the_warm_up_neither_a_size_nor_a_keyframe_compiles_anything(monkeypatch, pipeline):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    for file in (pipeline_file, video_vae_file):
        monkeypatch.setattr(file, "compile_blocks", partial(compile_blocks, backend=counter))
    speed = Acceleration(compile_blocks="on", warm_up=True)
    compiled = load_pipeline(dataclasses.replace(context(), acceleration=speed))
    warm = counter.frame_count
    for request in ({}, {"height": 64, "num_frames": 124, "seed": 3}):
        made = run(compiled, output_type="frames", **request)
        assert np.abs(made.frames.astype(int) - run(pipeline, output_type="frames", **request).frames).max() <= 1
    picture = MediaInput(kind=MediaKind.IMAGE, role="first", frames=np.zeros((1, 32, 64, 3), np.uint8))
    with_keyframe = dataclasses.replace(workload(), task="fl2va", media=(picture,))
    state = compiled.prepare(with_keyframe, compiled.encode(with_keyframe))
    while state.steps_done < state.num_steps:
        state = compiled.step(state)
    compiled.decode(state)
    assert 0 < warm == counter.frame_count
    torch._dynamo.reset()


def test_eager_is_never_compiled(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("compiled")

    for file in (pipeline_file, video_vae_file):
        monkeypatch.setattr(file, "compile_blocks", refuse)
    speed = Acceleration(compile_blocks="on", enforce_eager=True, warm_up=True)
    run(load_pipeline(dataclasses.replace(context(), acceleration=speed)))


def test_a_backend_that_asks_is_told_of_each_step_and_where_the_picture_lies(monkeypatch, pipeline):
    (transformer,) = {pipeline._transformers[name] for name in list(pipeline._transformers)[:1]}
    layer = transformer.blocks[1].attn.attend
    told = []

    def forward(q, k, v, metadata=None):
        told.append(metadata)
        return type(layer).forward(layer, q, k, v, metadata)

    expected = run(pipeline)
    assert told == []
    monkeypatch.setattr(layer, "forward", forward)
    run(pipeline)
    assert set(told) == {None}
    told.clear()
    monkeypatch.setattr(transformer, "reads_metadata", True)
    made = run(pipeline)
    assert np.array_equal(made.latents["video"], expected.latents["video"])
    assert [item.step for item in told] == list(range(len(told)))
    assert [item.progress for item in told] == sorted((item.progress for item in told), reverse=True)
    for item in told:
        assert item.video.used_len == item.cu_seqlens[-1]
        assert item.video.num_video_rows == np.prod(made.latents["video"].shape[2:]) // 4
    assert (layer.facts.index, layer.facts.name) == (1, "transformer_blocks.1.attn")


class Ascend:
    """The processor under the name of Ascend devices."""

    name = "npu"
    attention_preference = ("TORCH_SDPA",)

    def __init__(self, platform):
        self._platform = platform

    def __getattr__(self, name):
        return getattr(self._platform, name)


def test_block_sparse_attention_serves_the_steps_and_layers_that_it_may(monkeypatch):
    calls = []

    def sparse_attention(q, k, v, *, scale, txt_len, latent_shape_q, sparsity, **options):
        calls.append((txt_len, latent_shape_q, sparsity))
        return attend(q, k, v, scale=scale, causal=False)

    def attention_forward(q, k, v, attn_mask=None, scale=None, **options):
        return attend(q, k, v, scale=scale, causal=False)

    module: Any = ModuleType("mindiesd")
    module.__spec__ = ModuleSpec("mindiesd", None)
    module.sparse_attention, module.attention_forward = sparse_attention, attention_forward
    monkeypatch.setitem(sys.modules, "mindiesd", module)
    # Blocks as small as the clip, and heads as small as the model's.
    can = dataclasses.replace(rainfusion_attn.BACKEND.can, head_dims=())
    monkeypatch.setattr(type(rainfusion_attn.BACKEND), "can", can)
    monkeypatch.setattr(rainfusion_attn, "BLOCK", 4)
    monkeypatch.setattr(rainfusion_attn, "MIN_BLOCKS", 1)
    told = AttentionSpec(
        backend="RAINFUSION_ATTN", block_sparse=BlockSparseSpec(sparsity=0.5, start_step=1, skip_layers="0")
    )
    ordinary = context(dtype="bfloat16")
    platform: Any = Ascend(ordinary.platform)
    attention = AttentionConfig(per_role={"self": told, "minimax_h3.video_vae": AttentionSpec(backend="TORCH_SDPA")})
    pipeline = built(dataclasses.replace(ordinary, platform=platform, attention=attention))
    work = workload()
    state = pipeline.prepare(work, pipeline.encode(work))
    num_layers = len(next(iter(pipeline._transformers.values())).blocks)
    counts = []
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
        counts.append(len(calls))
        calls.clear()
    assert counts == [0, *[num_layers - 1] * (state.num_steps - 1)]
    made = pipeline.decode(state)
    expected = run(built(context(dtype="bfloat16")))
    difference = np.linalg.norm(made.latents["video"] - expected.latents["video"])
    assert difference < 0.05 * np.linalg.norm(expected.latents["video"])
