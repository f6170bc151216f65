import torch
from tests.attention.conftest import Recorder

from omnireel.attention import AttentionMetadata, Place
from omnireel.attention.backends import sage_attn
from omnireel.attention.backends.torch_sdpa import BACKEND as SDPA
from omnireel.attention.backends.torch_sdpa import attend


def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None):
    assert tensor_layout == "NHD"
    return attend(q, k, v, scale=sm_scale, causal=is_causal)


def test_it_is_called_document_by_document_with_the_scale(stand_in, qkv):
    recorder = Recorder(sageattn)
    stand_in("sageattention", sageattn=recorder)
    bound = sage_attn.BACKEND.bind(Place(platform="cuda", capability="9.0"), None)
    q, k, v = qkv(9)
    metadata = AttentionMetadata(cu_seqlens=(0, 4, 9))
    made = bound.forward(q, k, v, scale=0.1, causal=True, metadata=metadata)
    torch.testing.assert_close(made, SDPA.forward(q, k, v, scale=0.1, causal=True, metadata=metadata))
    assert [call[0].shape[1] for call in recorder.calls] == [4, 5]


def test_it_declares_what_it_takes():
    can = sage_attn.BACKEND.can
    assert (can.masks, can.platforms, can.is_run_on_hardware) == ("none", ("cuda",), False)
    assert can.capabilities == ("8.0", "8.6", "8.9", "9.0", "12.0", "12.1")
