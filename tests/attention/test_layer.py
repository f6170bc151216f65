import torch
from torch.nn.functional import scaled_dot_product_attention

from omnireel.attention import Attention, AttentionMetadata
from omnireel.attention.backends.torch_sdpa import BACKEND


def qkv(num_rows=5, num_heads=3, head_dim=8):
    torch.manual_seed(0)
    return [torch.randn(2, num_rows, num_heads, head_dim) for _ in range(3)]


def reference(q, k, v, **options):
    out = scaled_dot_product_attention(*(x.permute(0, 2, 1, 3) for x in (q, k, v)), **options)
    return out.permute(0, 2, 1, 3)


def test_it_gives_the_bits_of_torch_with_its_default_scale():
    for head_dim in (6, 8, 40, 128):
        q, k, v = qkv(head_dim=head_dim)
        layer = Attention(3, head_dim, backend=BACKEND, role="self")
        assert torch.equal(layer(q, k, v), reference(q, k, v))


def test_causal_rows_see_no_later_row():
    q, k, v = qkv()
    layer = Attention(3, 8, backend=BACKEND, role="self", causal=True)
    assert torch.equal(layer(q, k, v), reference(q, k, v, is_causal=True))


def test_documents_do_not_see_each_other():
    q, k, v = qkv()
    layer = Attention(3, 8, backend=BACKEND, role="self")
    out = layer(q, k, v, AttentionMetadata(cu_seqlens=(0, 2, 5)))
    expected = torch.cat([reference(q[:, a:b], k[:, a:b], v[:, a:b]) for a, b in ((0, 2), (2, 5))], dim=1)
    assert torch.equal(out, expected)


def test_it_has_no_weights():
    layer = Attention(3, 8, backend=BACKEND, role="self")
    assert layer.state_dict() == {}


def test_it_prints_its_role_and_backend():
    assert repr(Attention(3, 8, backend=BACKEND, role="self")) == "Attention(self, 3 x 8, TORCH_SDPA)"
