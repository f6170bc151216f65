import pytest
import torch

from omnireel.attention import AttentionMetadata, Place
from omnireel.attention.backends import cudnn_attn, torch_sdpa

CARD = Place(platform="cuda", capability="9.0")


@pytest.mark.parametrize(
    ("version", "problem"), [(None, "has no cuDNN"), (90400, "needs cuDNN 90500, this build of torch has 90400")]
)
def test_it_says_why_it_is_unavailable(version, problem, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    assert problem in (cudnn_attn.BACKEND.available(CARD) or "")


def test_it_is_available_with_a_fit_cudnn(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    assert cudnn_attn.BACKEND.available(CARD) is None


def test_it_takes_head_sizes_in_eights_up_to_256():
    assert {64, 128, 256} <= set(cudnn_attn.BACKEND.can.head_dims)
    assert not {4, 12, 264} & set(cudnn_attn.BACKEND.can.head_dims)


def test_a_single_key_is_computed_without_cudnn(qkv):
    q, k, v = qkv(5, keys=1)
    made = cudnn_attn.BACKEND.forward(q, k, v, scale=0.1, causal=False, metadata=AttentionMetadata())
    torch.testing.assert_close(made, v.expand(-1, 5, -1, -1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA card")
@pytest.mark.parametrize("cu_seqlens", [(), (0, 100, 333)])
def test_it_agrees_with_torch_on_a_card(cu_seqlens):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 333, 4, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    metadata = AttentionMetadata(cu_seqlens=cu_seqlens)
    ours = cudnn_attn.BACKEND.forward(q, k, v, scale=128**-0.5, causal=False, metadata=metadata)
    exact = torch_sdpa.BACKEND.forward(
        q.float(), k.float(), v.float(), scale=128**-0.5, causal=False, metadata=metadata
    )
    assert (ours.float() - exact).norm() / exact.norm() < 1e-2
