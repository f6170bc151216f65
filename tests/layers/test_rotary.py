import math

import pytest
import torch

from omnireel.layers import axial_rotary, rotate_


def table(positions, *, num_frequencies=2, theta=100.0, dtype=torch.float32):
    return axial_rotary(
        torch.tensor(positions, dtype=torch.float64), num_frequencies=num_frequencies, theta=theta, dtype=dtype
    )


def test_angles_go_axis_by_axis_and_share_frequencies():
    made = table([[1.0, 2.0, 3.0]])
    angles = [1.0, 0.1, 2.0, 0.2, 3.0, 0.3]
    assert made.cos.flatten().tolist() == pytest.approx([math.cos(angle) for angle in angles])
    assert made.sin.flatten().tolist() == pytest.approx([math.sin(angle) for angle in angles])


def test_angles_are_float32_and_only_then_rounded():
    """Far positions in bfloat16 would be whole turns off."""
    exact = table([[12345.0, 0.0, 0.0]])
    assert torch.equal(table([[12345.0, 0.0, 0.0]], dtype=torch.bfloat16).cos, exact.cos.to(torch.bfloat16))


def test_it_counts_its_rows():
    assert table([[0.0, 0.0, 0.0]] * 5).num_rows == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pairs_are_half_a_table_apart_and_the_rest_stays(dtype):
    torch.manual_seed(0)
    made = table(torch.rand(4, 3).tolist(), dtype=dtype)
    x = torch.randn(2, 4, 3, 16).to(dtype)
    cos, sin = made.cos, made.sin
    first, second, rest = x.split([6, 6, 4], dim=-1)
    expected = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
    assert torch.equal(rotate_(x.clone(), made), expected)


def test_turning_is_in_place():
    x = torch.ones(1, 1, 1, 12)
    assert rotate_(x, table([[1.0, 1.0, 1.0]])) is x
    assert x[0, 0, 0, 0] == pytest.approx(math.cos(1.0) - math.sin(1.0))


def test_products_of_turned_heads_depend_on_the_distance_only():
    torch.manual_seed(0)
    q, k = torch.randn(2, 12)

    def product(at_q, at_k):
        made = table([[at_q, 0.0, at_q], [at_k, 0.0, at_k]])
        turned = rotate_(torch.stack((q, k)).view(1, 2, 1, 12), made)
        return (turned[0, 0, 0] @ turned[0, 1, 0]).item()

    assert product(3.0, 5.0) == pytest.approx(product(10.0, 12.0), abs=1e-4)
    assert product(3.0, 5.0) != pytest.approx(product(3.0, 6.0), abs=1e-2)


def test_a_cut_is_the_table_of_its_rows_alone():
    positions = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    cut = table(positions).cut(1, 3)
    assert cut.num_rows == 2
    assert torch.equal(cut.cos, table(positions[1:]).cos)
    assert torch.equal(cut.sin, table(positions[1:]).sin)
