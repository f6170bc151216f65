import torch
from torch.nn.functional import silu

from omnireel.layers import SwiGlu


def test_the_first_half_of_the_projection_is_the_value_and_the_second_the_gate():
    torch.manual_seed(0)
    layer = SwiGlu(3, 4)
    weights = {name: torch.randn_like(tensor) for name, tensor in layer.state_dict().items()}
    layer.load_state_dict(weights)
    x = torch.randn(5, 3)
    value, gate = (x @ weights["net.0.proj.weight"].T).split(4, dim=-1)
    assert torch.allclose(layer(x), (value * silu(gate)) @ weights["net.2.weight"].T, atol=1e-6)


def test_weights_are_named_as_in_checkpoints():
    assert sorted(SwiGlu(3, 4).state_dict()) == ["net.0.proj.weight", "net.2.weight"]


def test_the_input_is_left_as_it_was():
    layer = SwiGlu(3, 4)
    for parameter in layer.parameters():
        parameter.fill_(1.0)
    x = torch.ones(2, 3)
    layer(x)
    assert torch.equal(x, torch.ones(2, 3))
