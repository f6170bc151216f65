import pytest
import torch
from tests.attention.conftest import Recorder

from omnireel.attention import AttentionMetadata, Place
from omnireel.attention.backend import LayerFacts
from omnireel.attention.backends import sage_attn_3
from omnireel.attention.backends.torch_sdpa import BACKEND as SDPA
from omnireel.attention.metadata import ONE_DOCUMENT


@pytest.fixture
def bound(stand_in):
    def blackwell(q_BHSD, k_BHSD, v_BHSD, is_causal=False):
        assert all(x.is_contiguous() for x in (q_BHSD, k_BHSD, v_BHSD))
        return torch.nn.functional.scaled_dot_product_attention(q_BHSD, k_BHSD, v_BHSD, is_causal=is_causal)

    recorder = Recorder(blackwell)
    stand_in("sageattn3", sageattn3_blackwell=recorder)
    made = sage_attn_3.BACKEND.bind(Place(platform="cuda", capability="10.0"), None)
    return made, recorder


def test_it_is_called_with_heads_first(bound, qkv):
    backend, recorder = bound
    q, k, v = qkv(9)
    metadata = AttentionMetadata(cu_seqlens=(0, 4, 9))
    made = backend.forward(q, k, v, scale=64**-0.5, causal=False, metadata=metadata)
    torch.testing.assert_close(made, SDPA.forward(q, k, v, scale=64**-0.5, causal=False, metadata=metadata))
    assert [tuple(call[0].shape) for call in recorder.calls] == [(1, 2, 4, 64), (1, 2, 5, 64)]


def test_another_scale_is_refused(bound, qkv):
    with pytest.raises(ValueError, match=r"scales by 0\.125 always, cross by 0\.1"):
        bound[0].forward(*qkv(9), scale=0.1, causal=False, metadata=ONE_DOCUMENT, layer=LayerFacts(role="cross"))


def test_grouped_heads_go_to_torch_and_it_says_so_once(bound, qkv, caplog):
    backend, recorder = bound
    q, k, v = qkv(9, heads=4, key_heads=2)
    for _ in range(2):
        made = backend.forward(q, k, v, scale=0.125, causal=False, metadata=ONE_DOCUMENT, layer=LayerFacts(role="self"))
    torch.testing.assert_close(made, SDPA.forward(q, k, v, scale=0.125, causal=False, metadata=ONE_DOCUMENT))
    assert not recorder.calls
    assert [record.getMessage() for record in caplog.records] == [
        "attention self: TORCH_SDPA, for SAGE_ATTN_3 has no grouped heads"
    ]
