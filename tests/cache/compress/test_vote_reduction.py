"""Votes of ranks, added up by hand."""

import pytest
import torch

from ringkv.base.ranks import Rank
from ringkv.cache.compress import vote_reduction


@pytest.mark.parametrize("count", [2, 3, 16])
def test_ranks_with_a_part_of_one_heads_queries_count_each_query_head_once(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ranks have 5, 5 and 6 of 16 query heads."""
    monkeypatch.setattr(vote_reduction, "all_reduce", lambda votes, exchange: votes)
    votes = torch.rand(16, 10, generator=torch.Generator().manual_seed(1))
    summed = torch.zeros(1, 10)
    for index in range(count):
        rank = Rank(index, count)
        own = votes[[*rank.heads(16)]].mean(0, keepdim=True)
        summed += vote_reduction.VoteReduction.of(rank, 1, 16, "network").mean(own)
    torch.testing.assert_close(summed, votes.mean(0, keepdim=True))
