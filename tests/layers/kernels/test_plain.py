import pytest
import torch
from tests.layers.kernels.cases import CASES, inputs
from torch.nn import functional as F

from omnireel.layers import PLAIN
from omnireel.layers.rotary import rotate_


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_reference_operation_by_operation(dtype):
    given, other = inputs(CASES["small"], dtype), inputs(CASES["small"], dtype)
    index = given["rows"].index.long()
    scale, shift, gate = (given[name][index] for name in ("scale", "shift", "gate"))
    normed = F.rms_norm(other["x"], (24,), other["norm"].weight, 1e-5) * scale + shift
    assert torch.equal(
        PLAIN.norm_modulate(given["x"], given["norm"], given["scale"], given["shift"], given["rows"]), normed
    )
    added = other["x"] + other["y"] * gate
    again = PLAIN.gate_add_norm_modulate_(
        *(given[name] for name in ("x", "y", "gate", "norm", "scale", "shift", "rows"))
    )
    assert torch.equal(given["x"], added)
    assert torch.equal(again, F.rms_norm(added, (24,), other["norm"].weight, 1e-5) * scale + shift)
    heads = F.rms_norm(other["packed"][:, :, 1], (16,), other["head_norm"].weight, 1e-5)
    assert torch.equal(
        PLAIN.norm_rotate(given["packed"][:, :, 1], given["head_norm"], given["rotary"]),
        rotate_(heads, other["rotary"]),
    )
    value, half = other["fused"].chunk(2, dim=-1)
    assert torch.equal(PLAIN.swiglu(given["fused"]), value * F.silu(half))
