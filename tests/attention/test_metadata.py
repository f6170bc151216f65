import pytest
import torch

from omnireel.attention.metadata import AttentionMetadata, by_document


def positions(num_rows):
    return torch.arange(float(num_rows)).view(1, num_rows, 1, 1)


def less_first_row(q, k, v):
    return q - v[:, :1]


@pytest.mark.parametrize("bounds", [(1, 4), (0, 4, 4), (0, 5, 3)])
def test_bounds_that_do_not_rise_from_zero_are_refused(bounds):
    with pytest.raises(ValueError, match="must rise from 0"):
        AttentionMetadata(cu_seqlens=bounds)


def test_each_document_is_run_by_itself_and_put_back_in_place():
    x = positions(6)
    out = by_document(less_first_row, x, x, x, AttentionMetadata(cu_seqlens=(0, 2, 3, 6)))
    assert out.flatten().tolist() == [0, 1, 0, 0, 1, 2]


@pytest.mark.parametrize("bounds", [(), (0, 6)])
def test_one_document_is_run_whole(bounds):
    x = positions(6)
    out = by_document(less_first_row, x, x, x, AttentionMetadata(cu_seqlens=bounds))
    assert torch.equal(out, x)


@pytest.mark.parametrize("bounds", [(0, 5), (0, 2, 5), (0, 2, 7)])
def test_documents_that_do_not_end_with_the_sequence_are_refused(bounds):
    x = positions(6)
    with pytest.raises(ValueError, match="the sequence at row 6"):
        by_document(less_first_row, x, x, x, AttentionMetadata(cu_seqlens=bounds))
