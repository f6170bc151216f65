from dataclasses import replace

import pytest
import torch
from tests.attention.conftest import Recorder

from omnireel.attention import (
    AttentionConfig,
    AttentionMetadata,
    AttentionSpec,
    Place,
    VideoTokenLayout,
    select_backend,
)
from omnireel.attention.backend import LayerFacts
from omnireel.attention.backends import rainfusion_attn
from omnireel.attention.backends.rainfusion_attn import Plan
from omnireel.attention.backends.torch_sdpa import BACKEND as SDPA
from omnireel.attention.metadata import ONE_DOCUMENT
from omnireel.errors import BadSetting, MissingPackage

NPU = Place(platform="npu")
LAYER = LayerFacts(role="self", index=3)
GRID = (4, 16, 64)
"""32 blocks exactly."""


def sequence(prefix=3, grid=GRID, tail=0, **told):
    video = VideoTokenLayout(prefix_len=prefix, latent_grid=grid)
    bounds = (0, video.used_len, video.used_len + tail) if tail else (0, video.used_len)
    return AttentionMetadata(**{"cu_seqlens": bounds, "video": video, "step": 5, **told})


@pytest.fixture
def seam(stand_in):
    """mindiesd: both kernels compute with torch, and the sparse one is recorded."""

    def sparse(q, k, v, *, scale, head_num, input_layout, inner_precise, sparse_type, txt_len, block_size,
               latent_shape_q, latent_shape_k, sparsity):  # fmt: skip
        assert (head_num, input_layout, inner_precise, block_size) == (q.shape[2], "BSND", 0, 128)
        return SDPA.forward(q, k, v, scale=scale, causal=False, metadata=ONE_DOCUMENT)

    def dense(q, k, v, attn_mask=None, scale=None, **options):
        return SDPA.forward(q, k, v, scale=scale, causal=False, metadata=ONE_DOCUMENT)

    recorders = Recorder(sparse), Recorder(dense)
    stand_in("mindiesd", sparse_attention=recorders[0], attention_forward=recorders[1])
    return recorders


def bind(**options):
    return rainfusion_attn.BACKEND.bind(NPU, {"sparsity": 0.8, "start_step": 0, **options})


def test_an_aligned_video_has_a_plan_of_host_integers(seam):
    plan = bind().plan(LAYER, sequence(prefix=900))
    assert plan == Plan(prefix_len=900, used_len=900 + 4096, latent_grid=GRID)
    assert all(type(value) is int for value in (plan.prefix_len, plan.used_len, *plan.latent_grid))


@pytest.mark.parametrize("prefix", [1, 127, 128, 710, 900])
def test_any_prefix_will_do(seam, prefix):
    assert isinstance(bind().plan(LAYER, sequence(prefix=prefix)), Plan)


@pytest.mark.parametrize(
    ("options", "layer", "metadata", "reason"),
    [
        ({"sparsity": 0.0}, LAYER, sequence(), "the sparsity is 0"),
        ({"skip_layers": [3]}, LAYER, sequence(), "layers in skip_layers are exempt"),
        ({"start_step": 6}, LAYER, sequence(), "steps before 6 are exempt"),
        ({}, replace(LAYER, layout=None), sequence(), "the layout of q, k and v is not declared"),
        ({}, LAYER, None, "nothing is known of the sequence"),
        ({}, LAYER, sequence(video=None), "the video's place is not told"),
        ({}, LAYER, sequence(cu_seqlens=()), "the length of its first document is not told"),
        ({}, LAYER, sequence(cu_seqlens=(0, 4100)), "the video ends at row 4099, its document at 4100"),
        ({}, LAYER, sequence(grid=(31, 8, 16)), "its 3968 video rows are fewer than 32 blocks of 128"),
        ({}, LAYER, sequence(grid=(62, 24, 42)), "its 62496 video rows are no multiple of 128"),
    ],
)  # fmt: skip
def test_each_reason_alone_makes_it_dense(seam, options, layer, metadata, reason):
    assert bind(**options).plan(layer, metadata) == reason


def test_reasons_come_in_their_order(seam):
    metadata = sequence(grid=(1, 1, 1), cu_seqlens=(), video=None)
    told = bind(sparsity=0.0, skip_layers=[3], start_step=9).plan(replace(LAYER, layout=None), metadata)
    assert told == "the sparsity is 0"
    assert bind(skip_layers=[3], start_step=9).plan(LAYER, metadata) == "layers in skip_layers are exempt"


def test_unknown_layers_and_steps_are_not_exempt(seam):
    plan = bind(skip_layers=[3], start_step=6).plan(replace(LAYER, index=None), sequence(step=None))
    assert isinstance(plan, Plan)


@pytest.mark.parametrize(("step", "is_sparse"), [(0, False), (4, False), (5, True), (6, True)])
def test_the_first_sparse_step_is_the_start_step(seam, step, is_sparse):
    assert isinstance(bind(start_step=5).plan(LAYER, sequence(step=step)), Plan) is is_sparse


@pytest.mark.parametrize("tail", [0, 5])
def test_the_kernel_sees_what_is_used_and_the_tail_is_zero(seam, qkv, tail):
    sparse, dense = seam
    metadata = sequence(tail=tail)
    q, k, v = qkv(4099 + tail, heads=1)
    out = bind().forward(q, k, v, scale=0.1, causal=False, metadata=metadata, layer=LAYER)
    (call,) = sparse.calls
    assert not dense.calls
    assert call[0].shape[1] == 4099
    told = {name: call[name] for name in ("txt_len", "latent_shape_q", "latent_shape_k", "sparsity", "sparse_type")}
    assert told == {
        "txt_len": 3, "latent_shape_q": [4, 16, 64], "latent_shape_k": [4, 16, 64], "sparsity": 0.8, "sparse_type": "rf_v2",
    }  # fmt: skip
    assert out.shape == q.shape
    assert not out[:, 4099:].any()
    used = [x[:, :4099] for x in (q, k, v)]
    torch.testing.assert_close(out[:, :4099], SDPA.forward(*used, scale=0.1, causal=False, metadata=ONE_DOCUMENT))


def test_dense_calls_go_to_flash_attention_and_the_rows_are_told_once(seam, qkv, caplog):
    sparse, dense = seam
    backend, tensors = bind(start_step=9), qkv(20)
    with caplog.at_level("INFO", logger="omnireel"):
        for _ in range(2):
            out = backend.forward(*tensors, scale=0.1, causal=False, metadata=ONE_DOCUMENT, layer=LAYER)
    torch.testing.assert_close(out, SDPA.forward(*tensors, scale=0.1, causal=False, metadata=ONE_DOCUMENT))
    assert (len(sparse.calls), len(dense.calls)) == (0, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "attention self: dense over 20 rows, for the video's place is not told"
    ]


@pytest.mark.parametrize(
    ("layer", "words"), [(replace(LAYER, causal=True), "is not causal"), (replace(LAYER, layout="BNSD"), "BSND")]
)
def test_layers_that_it_cannot_serve_are_refused_unless_it_is_dense(seam, layer, words):
    with pytest.raises(ValueError, match=words):
        bind().check_layer(layer)
    rainfusion_attn.BACKEND.bind(NPU, None).check_layer(layer)


def choose(platform):
    return select_backend(
        AttentionConfig(default=AttentionSpec(backend="RAINFUSION_ATTN")), role="self", category="self", head_dim=128,
        platform_name=platform, preference=(),
    )  # fmt: skip


def test_on_another_platform_it_is_refused_with_its_own():
    with pytest.raises(BadSetting, match=r"RAINFUSION_ATTN.*it runs on npu, not on cuda"):
        choose("cuda")


def test_without_its_package_it_is_refused():
    with pytest.raises(MissingPackage, match="RAINFUSION_ATTN needs the package mindiesd"):
        choose("npu")


def test_chosen_alone_it_has_the_default_sparsity(seam):
    backend = choose("npu")
    assert (backend.sparsity, backend.start_step) == (0.8, 0)
    assert backend.reads_metadata
