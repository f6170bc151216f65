"""Rows to heads and back: each exchange is what one process would have, at any length."""

from __future__ import annotations

import pytest
import torch
from tests.support.ranks import together

from omnireel.parallel import gather_heads, gather_rows, head_shares, own_heads, shares, to_heads, to_rows

LENGTHS = [(rows, size) for size in (2, 3, 4) for rows in (0, 1, size - 1, 12, 13, 37)]


def rows_of(whole, rank, size):
    """The share of one rank along dim 1."""
    return torch.split(whole, list(shares(whole.shape[1], size)), dim=1)[rank]


@pytest.mark.parametrize(("rows", "size"), LENGTHS)
def test_shares_are_all_rows_and_differ_by_one_at_most(rows, size):
    counts = shares(rows, size)
    assert (len(counts), sum(counts)) == (size, rows)
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("rows", "size"), LENGTHS)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("more", [0, 1])
def test_each_rank_has_all_rows_of_its_heads_and_gets_its_rows_back(rows, size, batch, more):
    units = 2 * size + more
    query, key = torch.randn(batch, rows, 2 * units, 5), torch.randn(batch, rows, units, 5)
    counts = shares(rows, size)
    by_query, by_key = head_shares(2 * units, size, units), head_shares(units, size)
    assert by_query == tuple(2 * count for count in by_key)

    def work(ranks):
        own = [rows_of(item, ranks.rank, size) for item in (query, key)]
        heads = to_heads(ranks, own, counts)
        return heads, to_rows(ranks, heads[0], counts, by_query), own[0], ranks.exchanges

    for rank, (heads, back, own, exchanges) in enumerate(together(size, work)):
        for whole, part, count in zip((query, key), heads, (by_query, by_key), strict=True):
            assert torch.equal(part, torch.split(whole, list(count), dim=2)[rank])
        assert torch.equal(back, own)
        assert exchanges == 2


@pytest.mark.parametrize(("rows", "size"), LENGTHS)
def test_gathered_rows_are_the_whole_on_every_rank(rows, size):
    whole = torch.randn(2, rows, 3)
    for found in together(size, lambda ranks: gather_rows(ranks, rows_of(whole, ranks.rank, size), shares(rows, size))):
        assert torch.equal(found, whole)


def test_heads_of_joint_rows_are_cut_and_put_together_again():
    whole, heads = torch.randn(2, 3, 10, 5), head_shares(10, 4)
    assert heads == (3, 3, 2, 2)
    for found in together(4, lambda ranks: gather_heads(ranks, own_heads(ranks, whole), heads)):
        assert torch.equal(found, whole)


def test_too_few_heads_and_rows_of_another_are_errors():
    def refused(ranks):
        with pytest.raises(ValueError, match="2 heads of 2 groups cannot be shared out by 3 ranks"):
            to_heads(ranks, [torch.zeros(1, 1, 2, 2)], (1, 1, 1))
        with pytest.raises(ValueError, match="5 heads of 4 groups"):
            to_heads(ranks, [torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 4, 2)], (1, 1, 1))
        with pytest.raises(ValueError, match="its share is 2"):
            to_heads(ranks, [torch.zeros(1, 1, 3, 2)], (2, 2, 2))

    together(3, refused)
