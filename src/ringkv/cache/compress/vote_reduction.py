"""vote_reduction: votes of query heads on several ranks, reduced to one. H key-value heads of this rank, n candidates.

Each query head is on one rank. A key-value head is on several ranks if there are fewer heads than ranks, and the latent
of all heads is on every rank. Their query heads vote together, or ranks would keep different tokens.
"""

from dataclasses import dataclass

from torch import Tensor

from ringkv.base.ranks import Exchange, Rank
from ringkv.kernels.collective import all_max, all_reduce


class VoteReduction:
    """Reduces the votes of several ranks. This base has all query heads on one rank."""

    def mean(self, votes: Tensor) -> Tensor:
        """Return the mean of votes [H, ..., n] of the same key-value head, each the mean of a rank's query heads."""
        return votes

    def maximum(self, votes: Tensor) -> Tensor:
        """Return the maximum of votes [H, n] of the same key-value head."""
        return votes

    def mean_of_all(self, votes: Tensor) -> Tensor:
        """Return the mean of votes of any shape, each the mean of all query heads of a rank."""
        return votes


@dataclass(frozen=True)
class RankReduction(VoteReduction):
    """Ranks divide `heads` key-value heads, and their query heads, of which this rank has a `share`."""

    rank: Rank
    heads: int
    share: float
    exchange: Exchange

    def mean(self, votes: Tensor) -> Tensor:
        if not self._is_replicated:
            return votes
        of_head = self.share * self.heads  # how many of a head's query heads this rank has
        return self._of_rank(all_reduce(self._placed(votes * of_head), self.exchange))

    def maximum(self, votes: Tensor) -> Tensor:
        """Votes are not negative, so zeros stand for the heads of other ranks."""
        return self._of_rank(all_max(self._placed(votes), self.exchange)) if self._is_replicated else votes

    def mean_of_all(self, votes: Tensor) -> Tensor:
        return all_reduce(votes * self.share, self.exchange)

    @property
    def _is_replicated(self) -> bool:
        """Whether each key-value head is on several ranks."""
        return self.heads < self.rank.count

    def _placed(self, votes: Tensor) -> Tensor:
        every_head = votes.new_zeros(self.heads, *votes.shape[1:])
        self._of_rank(every_head).copy_(votes)
        return every_head

    def _of_rank(self, every_head: Tensor) -> Tensor:
        span = self.rank.heads(self.heads)
        return every_head[span.start : span.stop]


def vote_reduction(rank: Rank, heads: int, queries: int, exchange: Exchange) -> VoteReduction:
    """Return the reduction for `heads` key-value heads with `queries` query heads each."""
    if rank.count == 1:
        return VoteReduction()
    return RankReduction(rank, heads, len(rank.heads(heads * queries, heads)) / (heads * queries), exchange)
