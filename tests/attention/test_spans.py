import random
from functools import partial

import pytest
import torch

from omnireel.attention import AttentionMetadata
from omnireel.attention.backends.torch_sdpa import attend
from omnireel.attention.metadata import QueryRange
from omnireel.attention.spans import pieces, piecewise


def explicit_mask(rows, spans):
    mask = torch.ones(rows, rows, dtype=torch.bool).tril()
    for first, last in spans:
        mask[first:last, first:last] = True
    return mask


def random_spans(rng, rows):
    cuts = sorted(rng.sample(range(rows + 1), 2 * rng.randint(0, 3)))
    return tuple(zip(cuts[::2], cuts[1::2], strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_it_equals_attention_with_the_explicit_mask_also_in_shards(seed, qkv):
    rng = random.Random(seed)
    rows = 17
    spans = random_spans(rng, rows)
    q, k, v = qkv(rows, batch=2, dtype=torch.float32)
    expected = attend(q, k, v, scale=0.125, causal=False, mask=explicit_mask(rows, spans)[None, None])
    kernel = partial(attend, scale=0.125)
    whole = piecewise(kernel, q, k, v, AttentionMetadata(full_attn_spans=spans))
    torch.testing.assert_close(whole, expected)
    cut = rng.randint(1, rows - 1)
    shards = []
    for a, b in ((0, cut), (cut, rows)):
        half = (a + b) // 2
        ranges = tuple(
            QueryRange(local_start=x - a, local_end=y - a, global_start=x) for x, y in ((a, half), (half, b)) if y > x
        )
        shards.append(piecewise(kernel, q[:, a:b], k, v, AttentionMetadata(full_attn_spans=spans, query_ranges=ranges)))
    torch.testing.assert_close(torch.cat(shards, dim=1), expected)


def test_pieces_are_causal_between_spans():
    cut = [(item.start, item.stop, item.num_keys, item.is_causal) for item in pieces(2, 9, [(4, 6), (8, 12)])]
    assert cut == [(2, 4, 4, True), (4, 6, 6, False), (6, 8, 8, True), (8, 9, 12, False)]


@pytest.mark.parametrize("spans", [[(3, 3)], [(4, 2)], [(0, 5), (3, 7)], [(-1, 2)]])
def test_spans_that_overlap_or_are_empty_are_refused(spans):
    with pytest.raises(ValueError, match="half-open, not empty and apart"):
        list(pieces(0, 9, spans))


@pytest.mark.parametrize("ranges", [[(1, 4, 1)], [(0, 2, 0)], [(0, 2, 0), (3, 4, 3)], [(0, 0, 0), (0, 4, 0)]])
def test_ranges_that_do_not_cover_the_rows_are_refused(ranges, qkv):
    q, k, v = qkv(4, dtype=torch.float32)
    told = tuple(QueryRange(local_start=a, local_end=b, global_start=c) for a, b, c in ranges)
    with pytest.raises(ValueError, match="query ranges"):
        piecewise(partial(attend, scale=1.0), q, k, v, AttentionMetadata(full_attn_spans=(), query_ranges=told))
