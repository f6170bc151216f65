import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from omnireel.attention import Attention, AttentionMetadata
from omnireel.attention.backend import Place
from omnireel.attention.backends import flash_attn
from omnireel.attention.backends.torch_sdpa import BACKEND as SDPA
from omnireel.attention.flash import FlashKernel, flash_attention, load_kernel, longest, on_device
from omnireel.attention.metadata import ONE_DOCUMENT

HALF = torch.bfloat16


def reference(q, k, v, metadata=ONE_DOCUMENT, causal=False):
    return SDPA.forward(q, k, v, scale=0.1, causal=causal, metadata=metadata)


def run(kernel, q, k, v, metadata=ONE_DOCUMENT, *, causal=False):
    return flash_attention(kernel, q, k, v, scale=0.1, causal=causal, metadata=metadata)


@pytest.fixture(params=[True, False], ids=["dense", "varlen alone"])
def kernel(request, flash_module):
    flash_module("a_flash", has_dense=request.param, as_tuple=True)
    return load_kernel("a_flash")


@pytest.mark.parametrize("causal", [False, True])
def test_whole_sequences(kernel, qkv, causal):
    q, k, v = qkv(9, batch=2)
    torch.testing.assert_close(run(kernel, q, k, v, causal=causal), reference(q, k, v, causal=causal))


def test_documents_are_one_call_with_bounds_from_the_host(flash_module, qkv):
    one, many = flash_module("a_flash")
    q, k, v = qkv(9)
    metadata = AttentionMetadata(cu_seqlens=(0, 4, 6, 9))
    torch.testing.assert_close(run(load_kernel("a_flash"), q, k, v, metadata), reference(q, k, v, metadata))
    (call,) = many.calls
    assert not one.calls
    assert call["cu_seqlens_q"].tolist() == call["cu_seqlens_k"].tolist() == [0, 4, 6, 9]
    assert call["max_seqlen_q"] == call["max_seqlen_k"] == 4
    assert type(call["max_seqlen_q"]) is int


def test_documents_without_bounds_in_the_kernel_are_called_one_by_one(flash_module, qkv):
    one, _ = flash_module("a_flash")
    kernel = FlashKernel(source="a_flash", dense=one, varlen=None)
    q, k, v = qkv(9)
    metadata = AttentionMetadata(cu_seqlens=(0, 4, 9))
    torch.testing.assert_close(run(kernel, q, k, v, metadata), reference(q, k, v, metadata))
    assert len(one.calls) == 2


def test_keys_past_the_valid_length_are_cut_off(kernel, qkv):
    q, k, v = qkv(9)
    for bounds in ((), (0, 3, 9), (0, 7, 9)):
        metadata = AttentionMetadata(cu_seqlens=bounds, valid_kv_length=6)
        torch.testing.assert_close(run(kernel, q, k, v, metadata), reference(q, k, v, metadata))


def test_hidden_rows_are_taken_out_and_come_back_as_zeros(kernel, qkv):
    q, k, v = qkv(9, batch=2)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 5:] = mask[1, 2] = False
    out = run(kernel, q, k, v, AttentionMetadata(mask=mask))
    expected = reference(q, k, v, AttentionMetadata(mask=mask))
    torch.testing.assert_close(out[mask], expected[mask])
    assert not out[~mask].any()


def test_queries_of_their_own_see_the_keys_that_are_left(kernel, qkv):
    q, k, v = qkv(4, keys=9, batch=2)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 5:] = False
    mask[1] = False
    out = run(kernel, q, k, v, AttentionMetadata(mask=mask))
    torch.testing.assert_close(out[:1], reference(q[:1], k[:1, :5], v[:1, :5]))
    assert not out[1].any()


def test_a_mask_that_hides_nothing_is_one_dense_call(flash_module, qkv):
    one, many = flash_module("a_flash")
    q, k, v = qkv(9)
    run(load_kernel("a_flash"), q, k, v, AttentionMetadata(mask=torch.ones(1, 9, dtype=torch.bool)))
    assert (len(one.calls), len(many.calls)) == (1, 0)


def test_a_mask_beside_documents_is_refused(kernel, qkv):
    q, k, v = qkv(9)
    metadata = AttentionMetadata(mask=torch.ones(1, 9, dtype=torch.bool), cu_seqlens=(0, 2, 9))
    with pytest.raises(ValueError, match="say all of it in one"):
        run(kernel, q, k, v, metadata)


def test_spans(kernel, qkv):
    q, k, v = qkv(9)
    metadata = AttentionMetadata(full_attn_spans=((2, 6),))
    torch.testing.assert_close(run(kernel, q, k, v, metadata, causal=True), reference(q, k, v, metadata))


def test_a_module_without_the_functions_is_refused(stand_in):
    stand_in("a_flash")
    with pytest.raises(ImportError, match="neither flash_attn_func nor"):
        load_kernel("a_flash")


def test_bounds_are_made_once():
    device = torch.device("cpu")
    assert on_device((0, 3, 9), device) is on_device((0, 3, 9), device)
    assert longest((0, 3, 9)) == 6


def test_a_graph_does_not_break_at_the_kernel_and_serves_every_length(flash_module, qkv):
    flash_module("fa3_fwd_interface")
    backend = flash_attn.BACKEND.bind(Place(platform="cuda", capability="9.0"), None)
    layer = Attention(2, 64, backend=backend, role="self")
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for rows in (9, 14):
        q, k, v = qkv(rows)
        torch.testing.assert_close(compiled(q, k, v), layer(q, k, v))
        counts.append(counter.frame_count)
    torch._dynamo.reset()
    assert counts[0] == counts[1]
    assert sum("omnireel.flash_attention" in graph.code for graph in counter.graphs) == 1
