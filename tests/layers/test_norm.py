import pytest
import torch

from omnireel.layers import RMSNorm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_gives_the_bits_of_torch(dtype):
    torch.manual_seed(0)
    ours, theirs = RMSNorm(24, eps=1e-3).to(dtype), torch.nn.RMSNorm(24, eps=1e-3).to(dtype)
    theirs.weight.data = torch.randn(24).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 24).to(dtype)
    assert torch.equal(ours(x), theirs(x))


def test_rows_come_out_with_the_weight_as_their_size():
    norm = RMSNorm(4, eps=0.0)
    norm.weight.fill_(2.0)
    assert norm(torch.tensor([3.0, -3.0, 3.0, -3.0])).tolist() == [2.0, -2.0, 2.0, -2.0]
