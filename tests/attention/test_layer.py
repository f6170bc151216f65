from dataclasses import replace

import pytest
import torch
from tests.support.ranks import together
from torch.nn.functional import scaled_dot_product_attention

from omnireel.attention import Attention, AttentionMetadata, JointTokens
from omnireel.attention.backend import AttentionBackend, Capabilities
from omnireel.attention.backends.torch_sdpa import BACKEND
from omnireel.parallel import shares


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


class Told(AttentionBackend):
    """Gives back the queries and keeps what it was told."""

    name = "TOLD"
    can = Capabilities(dtypes=(torch.bfloat16,))

    def forward(self, q, k, v, **told):  # type: ignore[override]
        self.said.add("something")
        object.__setattr__(self, "told", told)
        return q


def told_layer(**can):
    kind = type("Told", (Told,), {"can": replace(Told.can, **can)})
    return Attention(3, 8, backend=kind(), role="self", index=4, name="blocks.4.attn")


def half():
    return [x.bfloat16() for x in qkv()]


def test_float32_goes_to_torch_where_the_backend_has_none():
    layer = told_layer()
    q, k, v = qkv()
    assert torch.equal(layer(q, k, v), reference(q, k, v))
    assert not layer.backend.said
    q, k, v = half()
    assert layer(q, k, v) is q


def test_the_backend_is_told_of_its_layer():
    layer = told_layer()
    layer(*half())
    facts = layer.backend.told["layer"]
    assert (facts.role, facts.index, facts.name, facts.layout) == ("self", 4, "blocks.4.attn", "BSND")


MASK = torch.ones(2, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("masks", "metadata", "words"),
    [
        ("none", AttentionMetadata(mask=MASK), "TOLD takes no masks; choose TORCH_SDPA for self"),
        ("keys", AttentionMetadata(mask=MASK[:, None, None]), "TOLD takes no dense masks"),
        ("prefix", AttentionMetadata(mask=MASK[:, None, None]), "TOLD takes no dense masks"),
        ("any", AttentionMetadata(full_attn_spans=((0, 2),)), "TOLD has no mixed attention; choose FLASH_ATTN"),
    ],
)
def test_metadata_that_the_backend_cannot_honour_is_refused(masks, metadata, words):
    with pytest.raises(ValueError, match=words):
        told_layer(masks=masks)(*half(), metadata)


@pytest.mark.parametrize(
    ("masks", "metadata"),
    [
        ("prefix", AttentionMetadata(mask=MASK)),
        ("any", AttentionMetadata(mask=MASK[:, None, None], full_attn_spans=((0, 2),))),
    ],
)
def test_metadata_that_it_can_honour_is_passed_on(masks, metadata):
    layer = told_layer(masks=masks)
    layer(*half(), metadata)
    assert layer.backend.told["metadata"] is metadata


def test_a_causal_layer_needs_a_causal_backend():
    kind = type("Told", (Told,), {"can": Capabilities(has_causal=False)})
    with pytest.raises(ValueError, match="TOLD has no causal attention, which self needs"):
        Attention(3, 8, backend=kind(), role="self", causal=True)


@pytest.mark.parametrize("is_traceable", [True, False])
def test_the_compiler_is_kept_out_of_what_it_cannot_look_into(is_traceable):
    torch._dynamo.reset()
    layer = told_layer(is_traceable=is_traceable)
    seen: list[bool] = []

    def forward(self, q, k, v, **told):
        seen.append(torch.compiler.is_compiling())
        return q

    layer.backend.__class__.forward = forward
    torch.compile(layer, backend="eager")(*half())
    torch._dynamo.reset()
    assert seen[-1] is is_traceable


def joint(strategy, num_heads):
    query, key, value = qkv(num_rows=3, num_heads=num_heads)
    mask = torch.tensor([[True, False, True], [True, True, True]])
    return JointTokens(query=query, key=key, value=value, mask=mask, strategy=strategy)


ROWS = 11
SHARED = {
    "plain": AttentionMetadata(),
    "documents": AttentionMetadata(cu_seqlens=(0, 4, 4, ROWS)),
    "keys": AttentionMetadata(mask=torch.arange(ROWS)[None] < torch.tensor([[9], [11]])),
    "padding": AttentionMetadata(valid_kv_length=7),
    "dense": AttentionMetadata(mask=torch.rand(2, 1, ROWS, ROWS, generator=torch.Generator().manual_seed(0)) < 0.8),
    "by head": AttentionMetadata(mask=torch.rand(2, 4, ROWS, ROWS, generator=torch.Generator().manual_seed(0)) < 0.8),
    "by head of all": AttentionMetadata(
        mask=torch.rand(4, ROWS, ROWS, generator=torch.Generator().manual_seed(0)) < 0.8
    ),
    "spans": AttentionMetadata(full_attn_spans=((2, 5), (7, 8))),
    "joint front": AttentionMetadata(joint=joint("front", 4)),
    "joint rear": AttentionMetadata(joint=joint("rear", 4)),
}


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    ("told", "causal"),
    [(name, causal) for name in SHARED for causal in (False, True) if not (causal and "joint" in name)],
)
def test_ranks_that_share_rows_have_what_one_process_has(size, told, causal):
    metadata, counts = SHARED[told], shares(ROWS, size)
    q, k, v = qkv(num_rows=ROWS, num_heads=4)
    whole = Attention(4, 8, backend=BACKEND, role="self", causal=causal)(q, k, v, metadata)

    def work(ranks):
        layer = Attention(4, 8, backend=BACKEND, role="self", causal=causal, ranks=ranks)
        own = [torch.split(item, list(counts), dim=1)[ranks.rank] for item in (q, k, v)]
        return layer(*own, replace(metadata, shares=counts))

    found = together(size, work)
    if metadata.joint is not None:
        parts = [metadata.joint.parted(part) for part in found]
        assert all(torch.equal(beside, parts[0][1]) for _, beside in parts)
        torch.testing.assert_close(metadata.joint.parted(whole)[1], parts[0][1], rtol=1e-5, atol=1e-6)
        found, whole = [main for main, _ in parts], metadata.joint.parted(whole)[0]
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=1e-5, atol=1e-6)


def test_calls_that_share_nothing_stay_with_their_rank():
    q, k, v = qkv(num_heads=4)
    whole = Attention(4, 8, backend=BACKEND, role="self")(q, k, v)

    def work(ranks):
        return Attention(4, 8, backend=BACKEND, role="self", ranks=ranks)(q, k, v), ranks.exchanges

    for found, exchanges in together(2, work):
        assert torch.equal(found, whole)
        assert exchanges == 0


def test_heads_that_ranks_cannot_share_and_shares_without_ranks_are_errors():
    def refused(ranks):
        with pytest.raises(ValueError, match="2 ranks cannot share the 1 heads of self"):
            Attention(1, 8, backend=BACKEND, role="self", ranks=ranks)

    together(2, refused)
    with pytest.raises(ValueError, match="it knows no ranks"):
        Attention(3, 8, backend=BACKEND, role="self")(*qkv(), AttentionMetadata(shares=(3, 2)))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_groups_of_query_heads_whole(size):
    q, (k, v, _), counts = qkv(num_rows=7, num_heads=12)[0], qkv(num_rows=7, num_heads=4), shares(7, size)
    whole = Attention(12, 8, backend=BACKEND, role="self")(q, k, v)

    def work(ranks):
        own = [torch.split(item, list(counts), dim=1)[ranks.rank] for item in (q, k, v)]
        return Attention(12, 8, backend=BACKEND, role="self", ranks=ranks)(*own, AttentionMetadata(shares=counts))

    torch.testing.assert_close(torch.cat(together(size, work), dim=1), whole, rtol=1e-5, atol=1e-6)
