import pytest
import torch
from tests.layers.kernels.cases import CASES, OPERATIONS, compare

from omnireel.layers.kernels import TRACEABLE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_it_gives_the_bits_of_the_oracle(operation, name, dtype):
    for ours, plain in compare(TRACEABLE, OPERATIONS[operation], CASES[name], dtype):
        assert torch.equal(ours, plain)
