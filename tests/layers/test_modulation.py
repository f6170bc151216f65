import pytest
import torch

from omnireel.layers import RowSegment, TableRows, gate_, modulate_, row_segments


@pytest.mark.parametrize(
    ("rows", "segments"),
    [
        ([], []),
        ([4], [(0, 1, 4)]),
        ([1, 1, 0, 0, 0, 1], [(0, 2, 1), (2, 5, 0), (5, 6, 1)]),
    ],
)
def test_runs_of_equal_rows_are_found(rows, segments):
    assert row_segments(torch.tensor(rows, dtype=torch.int64)) == tuple(RowSegment(*segment) for segment in segments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_give_the_bits_of_gathered_rows(dtype):
    torch.manual_seed(0)
    rows = torch.tensor([1, 1, 1, 0, 0, 5, 5, 2])
    x, scale, shift = torch.randn(2, 8, 24).to(dtype), torch.randn(6, 24).to(dtype), torch.randn(6, 24).to(dtype)
    segments = row_segments(rows)
    assert torch.equal(modulate_(x.clone(), scale, shift, segments), x * scale[rows] + shift[rows])
    assert torch.equal(gate_(x.clone(), scale, segments), x * scale[rows])


def test_it_works_in_place():
    x = torch.ones(1, 2, 3)
    segments = (RowSegment(0, 2, 0),)
    two = torch.full((1, 3), 2.0)
    assert modulate_(x, two, two, segments) is x
    assert gate_(x, two, segments) is x
    assert x.unique().tolist() == [8.0]


@pytest.mark.parametrize(("start", "stop"), [(0, 8), (0, 3), (2, 6), (5, 5), (7, 8)])
def test_a_cut_is_what_its_rows_alone_would_be(start, stop):
    rows = torch.tensor([1, 1, 1, 0, 0, 5, 5, 2])
    cut, alone = (
        TableRows.of(rows, torch.device("cpu")).cut(start, stop),
        TableRows.of(rows[start:stop], torch.device("cpu")),
    )
    assert cut.segments == alone.segments
    assert torch.equal(cut.index, alone.index)
