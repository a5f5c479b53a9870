"""vote_reduction: votes of query heads on several ranks, reduced to one. H key-value heads of this rank, n candidates.

Each query head is on one rank. A key-value head is on several ranks if there are fewer heads than ranks, and the latent
of all heads is on every rank. Their query heads vote together, or ranks would keep different tokens.
"""

from dataclasses import dataclass

from torch import Tensor

from ringkv.base.ranks import ONE_RANK, Exchange, Rank
from ringkv.kernels.collective import all_max, all_reduce


@dataclass(frozen=True)
class VoteReduction:
    """Reduces the votes of ranks that divide `heads` key-value heads, and their query heads.

    share: the part of the query heads that this rank has; by default all.
    """

    rank: Rank = ONE_RANK
    heads: int = 1
    share: float = 1.0
    exchange: Exchange = "none"

    @classmethod
    def of(cls, rank: Rank, heads: int, queries: int, exchange: Exchange) -> "VoteReduction":
        """Return the reduction for `heads` key-value heads with `queries` query heads each."""
        return cls(rank, heads, len(rank.heads(heads * queries, heads)) / (heads * queries), exchange)

    def mean(self, votes: Tensor) -> Tensor:
        """Return the mean of votes [H, ..., n] of the same key-value head, each the mean of a rank's query heads."""
        if not self._is_replicated:
            return votes
        of_head = self.share * self.heads  # how many of a head's query heads this rank has
        return self._of_rank(all_reduce(self._placed(votes * of_head), self.exchange))

    def maximum(self, votes: Tensor) -> Tensor:
        """Return the maximum of votes [H, n] of the same key-value head. Votes are not negative."""
        return self._of_rank(all_max(self._placed(votes), self.exchange)) if self._is_replicated else votes

    def mean_of_all(self, votes: Tensor) -> Tensor:
        """Return the mean of votes of any shape, each the mean of all query heads of a rank."""
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
