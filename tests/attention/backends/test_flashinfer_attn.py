from typing import Any, ClassVar

import pytest
import torch

from omnireel.attention import AttentionMetadata, Place
from omnireel.attention.backends import flashinfer_attn
from omnireel.attention.backends.torch_sdpa import BACKEND as SDPA
from omnireel.attention.backends.torch_sdpa import attend
from omnireel.attention.metadata import ONE_DOCUMENT


class Wrapper:
    """As flashinfer's wrapper for ragged sequences: planned once, run many times."""

    made: ClassVar[list[Any]] = []

    def __init__(self, float_workspace_buffer, kv_layout="NHD", *, backend="auto"):
        self.workspace, self.layout, self.backend, self.runs = float_workspace_buffer, kv_layout, backend, 0
        Wrapper.made.append(self)

    def plan(
        self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, *, custom_mask, causal, sm_scale,
        q_data_type, kv_data_type, o_data_type=None,
    ):  # fmt: skip
        assert qo_indptr.device.type == "cpu"
        self.bounds = qo_indptr.tolist(), kv_indptr.tolist()
        self.mask, self.causal, self.scale = custom_mask, causal, sm_scale
        self.types, self.out_type = (q_data_type, kv_data_type), o_data_type
        self.heads = num_qo_heads, num_kv_heads, head_dim_qk

    def run(self, q, k, v):
        self.runs += 1
        assert (q.shape[1], k.shape[1], q.shape[2]) == self.heads
        assert (q.dtype, v.dtype) == self.types
        out = torch.zeros(q.shape, dtype=self.out_type or q.dtype)
        q, k, v = (x.to(out.dtype) for x in (q, k, v))
        for a, b, c, d in zip(self.bounds[0], self.bounds[0][1:], self.bounds[1], self.bounds[1][1:], strict=False):
            mask = None if self.mask is None else self.mask.view(1, 1, b - a, d - c)
            out[a:b] = attend(
                q[None, a:b], k[None, c:d], v[None, c:d], scale=self.scale, causal=self.causal, mask=mask
            )[0]
        return out


@pytest.fixture
def bind(stand_in, monkeypatch):
    monkeypatch.setattr(flashinfer_attn, "WORKSPACE_BYTES", 16)
    monkeypatch.setattr(Wrapper, "made", [])
    stand_in("flashinfer", BatchPrefillWithRaggedKVCacheWrapper=Wrapper)
    return lambda capability="9.0", options=None: flashinfer_attn.BACKEND.bind(
        Place(platform="cuda", capability=capability), options
    )


def check(backend, tensors, metadata=ONE_DOCUMENT, causal=False):
    made = backend.forward(*tensors, scale=0.1, causal=causal, metadata=metadata)
    torch.testing.assert_close(made, SDPA.forward(*tensors, scale=0.1, causal=causal, metadata=metadata))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bounds", [(), (0, 4, 9)])
def test_sequences_and_documents(bind, qkv, causal, bounds):
    check(bind(), qkv(9, batch=2, heads=4, key_heads=2), AttentionMetadata(cu_seqlens=bounds), causal)


def test_a_plan_is_made_once_for_all_layers_and_steps(bind, qkv):
    backend, tensors = bind(), qkv(9)
    metadata = AttentionMetadata(cu_seqlens=(0, 4, 9))
    for _ in range(3):
        check(backend, tensors, metadata)
    check(backend, tensors)
    assert [wrapper.runs for wrapper in Wrapper.made] == [3, 1]
    assert Wrapper.made[0].workspace is Wrapper.made[1].workspace


def test_plans_do_not_pile_up(bind, qkv):
    backend = bind()
    for rows in range(2, 30):
        check(backend, qkv(rows))
    assert len(backend.plans) == 16


@pytest.mark.parametrize("shape", [(2, 9), (2, 1, 9, 9)])
def test_masks(bind, qkv, shape):
    mask = torch.rand(shape) > 0.3
    mask[..., 0] = True
    check(bind(), qkv(9, batch=2), AttentionMetadata(mask=mask))


def test_a_mask_with_causality_is_refused(bind, qkv):
    with pytest.raises(ValueError, match="causal or takes a mask, not both"):
        check(bind(), qkv(9), AttentionMetadata(mask=torch.ones(1, 9, dtype=torch.bool)), causal=True)


def test_a_mask_that_is_not_boolean_is_refused(bind, qkv):
    with pytest.raises(ValueError, match="boolean masks"):
        check(bind(), qkv(9), AttentionMetadata(mask=torch.ones(1, 9)))


@pytest.mark.parametrize(
    ("capability", "variant"), [("8.9", "fa2"), ("9.0", "fa3"), ("10.0", "cute-dsl"), ("12.0", "cute-dsl")]
)
def test_kernels_go_by_the_card(bind, qkv, capability, variant):
    backend = bind(capability)
    assert backend.describe() == f"FLASHINFER_ATTN ({variant})"
    check(backend, qkv(9))
    assert Wrapper.made[0].backend == variant


def test_masks_need_kernels_that_have_them(bind, qkv):
    check(bind("10.0"), qkv(9), AttentionMetadata(mask=torch.ones(1, 9, dtype=torch.bool)))
    assert Wrapper.made[0].backend == "fa2"


def test_values_in_low_precision(bind, qkv):
    backend = bind(options={"dtype_vo": "fp8_e4m3", "flashinfer_backend": "fa3", "q_block_size": 1, "k_block_size": 16})
    q, k, v = qkv(9)
    made = backend.forward(q, k, v, scale=0.1, causal=False, metadata=ONE_DOCUMENT)
    assert Wrapper.made[0].types == (torch.bfloat16, torch.float8_e4m3fn)
    assert made.dtype is torch.bfloat16


@pytest.mark.parametrize("options", [{"dtype_qk": "int8"}, {"dtype_qk": "fp8_e4m3"}, {"dtype_vo": "int8"}])
def test_types_without_kernels_are_refused(bind, options):
    with pytest.raises(ValueError, match="its q and k may be float16 or bfloat16"):
        bind(options=options)
