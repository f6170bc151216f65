import pytest
import torch

from omnireel.attention.metadata import AttentionMetadata, VideoTokenLayout, by_document


def positions(num_rows):
    return torch.arange(float(num_rows)).view(1, num_rows, 1, 1)


def less_first_row(q, k, v, /, mask=None):
    return q - v[:, :1]


@pytest.mark.parametrize("name", ["cu_seqlens", "cu_seqlens_k"])
@pytest.mark.parametrize("bounds", [(1, 4), (0, 5, 3), (0,), (3,)])
def test_bounds_that_do_not_rise_from_zero_are_refused(name, bounds):
    with pytest.raises(ValueError, match=f"{name} must rise from 0"):
        AttentionMetadata(**{name: bounds})


def test_bounds_of_keys_alone_are_incomplete():
    with pytest.raises(ValueError, match="incomplete packed metadata"):
        AttentionMetadata(cu_seqlens_k=(0, 4))


def test_queries_and_keys_have_as_many_documents():
    with pytest.raises(ValueError, match="3 bounds of queries and 2 of keys"):
        AttentionMetadata(cu_seqlens=(0, 1, 4), cu_seqlens_k=(0, 4))


def test_each_document_is_run_by_itself_and_put_back_in_place():
    x = positions(6)
    out = by_document(less_first_row, x, x, x, AttentionMetadata(cu_seqlens=(0, 2, 3, 3, 6)))
    assert out.flatten().tolist() == [0, 1, 0, 0, 1, 2]


def test_documents_of_queries_see_those_of_keys():
    metadata = AttentionMetadata(cu_seqlens=(0, 2, 3), cu_seqlens_k=(0, 4, 6))
    out = by_document(less_first_row, positions(3), positions(6), positions(6), metadata)
    assert out.flatten().tolist() == [0, 1, -2]


def test_queries_without_keys_are_zero():
    metadata = AttentionMetadata(cu_seqlens=(0, 2, 3), cu_seqlens_k=(0, 0, 6))
    out = by_document(less_first_row, positions(3) + 7, positions(6), positions(6), metadata)
    assert out.flatten().tolist() == [0, 0, 9]


@pytest.mark.parametrize("bounds", [(), (0, 6)])
def test_one_document_is_run_whole(bounds):
    x = positions(6)
    out = by_document(less_first_row, x, x, x, AttentionMetadata(cu_seqlens=bounds))
    assert torch.equal(out, x)


def lengths(q, k, v, /, mask=None):
    return q * 0 + (k.shape[1] if mask is None else 100 * k.shape[1] + mask.shape[-1])


@pytest.mark.parametrize(
    ("bounds", "seen"), [((), [4] * 6), ((0, 3, 6), [3] * 3 + [1] * 3), ((0, 4, 6), [4] * 4 + [0] * 2)]
)
def test_keys_past_the_valid_length_are_cut_off(bounds, seen):
    x = positions(6)
    metadata = AttentionMetadata(cu_seqlens=bounds, valid_kv_length=4)
    assert by_document(lengths, x, x, x, metadata).flatten().tolist() == seen


def test_masks_are_cut_with_their_keys():
    x = positions(6)
    mask = torch.ones(1, 6, dtype=torch.bool)
    metadata = AttentionMetadata(cu_seqlens=(0, 2, 6), mask=mask, valid_kv_length=5)
    assert by_document(lengths, x, x, x, metadata).flatten().tolist() == [202] * 2 + [303] * 4


def test_a_dense_mask_with_documents_is_refused():
    x = positions(6)
    metadata = AttentionMetadata(cu_seqlens=(0, 2, 6), mask=torch.ones(1, 1, 6, 6, dtype=torch.bool))
    with pytest.raises(ValueError, match="leave the documents out"):
        by_document(less_first_row, x, x, x, metadata)


@pytest.mark.parametrize("bounds", [(0, 5), (0, 2, 5), (0, 2, 7)])
def test_documents_that_do_not_end_with_the_sequence_are_refused(bounds):
    x = positions(6)
    with pytest.raises(ValueError, match="the sequence at row 6"):
        by_document(less_first_row, x, x, x, AttentionMetadata(cu_seqlens=bounds))


def test_a_video_counts_its_rows():
    video = VideoTokenLayout(prefix_len=7, latent_grid=(2, 3, 4))
    assert (video.num_video_rows, video.used_len) == (24, 31)
