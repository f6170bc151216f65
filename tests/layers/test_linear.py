import pytest
import torch
from torch.nn import functional as F

from omnireel.layers import Linear, project


def filled(bias):
    layer = Linear(3, 2, bias=bias)
    layer.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]]))
    if layer.bias is not None:
        layer.bias.copy_(torch.tensor([10.0, 20.0]))
    return layer


def test_it_multiplies_by_the_transposed_weight_and_adds_the_bias():
    assert filled(bias=True)(torch.tensor([1.0, 1.0, 2.0])).tolist() == [19.0, 20.0]


def test_without_bias_it_has_no_bias_tensor():
    assert list(filled(bias=False).state_dict()) == ["weight"]
    assert filled(bias=False)(torch.tensor([1.0, 1.0, 2.0])).tolist() == [9.0, 0.0]


def test_its_weights_take_no_gradients():
    assert not any(parameter.requires_grad for parameter in Linear(3, 2, bias=True).parameters())


def test_its_type_is_that_of_its_weight():
    assert Linear(3, 2, bias=True).to(torch.bfloat16).dtype is torch.bfloat16


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("shift", range(0, 64, 8))
def test_bits_do_not_depend_on_where_the_weight_lies(rows, shift):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, 24), torch.randn(24, 24), torch.randn(24)
    memory = torch.empty(weight.nbytes + 128, dtype=torch.uint8)
    first = -memory.data_ptr() % 64 + shift
    moved = memory[first : first + weight.nbytes].view(torch.float32).view(24, 24)
    moved.copy_(weight)
    assert torch.equal(project(x, moved, bias), F.linear(x, weight, bias))
