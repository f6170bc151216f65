"""Rows to heads and back: each exchange is what one process would have, at any length."""

from __future__ import annotations

import pytest
import torch
from tests.support.ranks import together

from omnireel.parallel import gather_heads, gather_rows, own_heads, shares, to_heads, to_rows

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
def test_each_rank_has_all_rows_of_its_heads_and_gets_its_rows_back(rows, size, batch):
    query, key = torch.randn(batch, rows, 4 * size, 5), torch.randn(batch, rows, 2 * size, 5)
    counts = shares(rows, size)

    def work(ranks):
        own = [rows_of(item, ranks.rank, size) for item in (query, key)]
        heads = to_heads(ranks, own, counts)
        return heads, to_rows(ranks, heads[0], counts), own[0], ranks.exchanges

    for rank, (heads, back, own, exchanges) in enumerate(together(size, work)):
        for whole, part in zip((query, key), heads, strict=True):
            assert torch.equal(part, whole.chunk(size, dim=2)[rank])
        assert torch.equal(back, own)
        assert exchanges == 2


@pytest.mark.parametrize(("rows", "size"), LENGTHS)
def test_gathered_rows_are_the_whole_on_every_rank(rows, size):
    whole = torch.randn(2, rows, 3)
    for found in together(size, lambda ranks: gather_rows(ranks, rows_of(whole, ranks.rank, size), shares(rows, size))):
        assert torch.equal(found, whole)


def test_heads_of_joint_rows_are_cut_and_put_together_again():
    whole = torch.randn(2, 3, 8, 5)
    for found in together(4, lambda ranks: gather_heads(ranks, own_heads(ranks, whole))):
        assert torch.equal(found, whole)


def test_heads_that_do_not_divide_and_rows_of_another_are_errors():
    def refused(ranks):
        with pytest.raises(ValueError, match="4 heads cannot be shared out evenly by 3 ranks"):
            to_heads(ranks, [torch.zeros(1, 1, 4, 2)], (1, 1, 1))
        with pytest.raises(ValueError, match="its share is 2"):
            to_heads(ranks, [torch.zeros(1, 1, 3, 2)], (2, 2, 2))

    together(3, refused)
