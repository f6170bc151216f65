import pytest
import torch

from omnireel.attention import AttentionMetadata, Place
from omnireel.attention.backends.torch_sdpa import BACKEND, attend
from omnireel.attention.metadata import ONE_DOCUMENT


def exact(q, k, v, mask, scale):
    """Softmax written out."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2) for x in (k, v))
    weights = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    weights = weights.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def test_it_takes_everything_everywhere():
    can = BACKEND.can
    assert (can.platforms, can.head_dims, can.dtypes, can.masks, can.has_spans) == (None, (), (), "any", True)
    assert BACKEND.missing(Place(platform="anything")) is None
    assert BACKEND.available(Place(platform="anything")) is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [5, 9])
@pytest.mark.parametrize("kind", ["none", "keys", "dense"])
def test_masks_and_lower_right_causality(qkv, causal, keys, kind):
    q, k, v = qkv(5, batch=2, keys=keys, heads=4, key_heads=2, dtype=torch.float32)
    allowed = torch.ones(2, 1, 5, keys, dtype=torch.bool)
    mask = None
    if kind == "keys":
        mask = torch.ones(2, keys, dtype=torch.bool)
        mask[1, 1:3] = False
        allowed &= mask[:, None, None]
    elif kind == "dense":
        mask = torch.rand(2, 1, 5, keys) > 0.3
        mask[..., 0] = True
        allowed &= mask
    if causal:
        allowed &= torch.ones(5, keys, dtype=torch.bool).tril(keys - 5)
    made = BACKEND.forward(q, k, v, scale=0.1, causal=causal, metadata=AttentionMetadata(mask=mask))
    torch.testing.assert_close(made, exact(q, k, v, allowed, 0.1))


def test_spans_need_no_mask(qkv):
    q, k, v = qkv(9, dtype=torch.float32)
    allowed = torch.ones(9, 9, dtype=torch.bool).tril()
    allowed[2:6, 2:6] = True
    made = BACKEND.forward(q, k, v, scale=0.1, causal=True, metadata=AttentionMetadata(full_attn_spans=((2, 6),)))
    torch.testing.assert_close(made, exact(q, k, v, allowed, 0.1))


def test_nothing_is_changed(qkv):
    tensors = qkv(5, dtype=torch.float32)
    before = [x.clone() for x in tensors]
    BACKEND.forward(*tensors, scale=0.1, causal=True, metadata=ONE_DOCUMENT)
    attend(*tensors, scale=0.1, causal=True, mask=torch.ones(1, 5, dtype=torch.bool))
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
