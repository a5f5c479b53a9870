"""across: the votes of query heads on other ranks. H key-value heads of this rank, n candidates.

Each query head is on one rank. A key-value head is on several if there are fewer than ranks, and the one latent of all
heads is on every rank: their query heads must vote together, or ranks would keep different tokens.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ringkv.base.ranks import Exchange, Rank
from ringkv.kernels.collective import all_max, all_reduce


class Across(Protocol):
    """How votes of several ranks become one."""

    def mean(self, votes: Tensor) -> Tensor:
        """Return the mean of votes [H, n] of the same key-value head, each the mean of a rank's query heads."""
        ...

    def highest(self, votes: Tensor) -> Tensor:
        """Return the highest votes [H, n] of the same key-value head."""
        ...

    def mean_of_all(self, votes: Tensor) -> Tensor:
        """Return the mean of votes of any shape, each the mean of all query heads of a rank."""
        ...


@dataclass(frozen=True)
class Alone:
    """All query heads are on this rank."""

    def mean(self, votes: Tensor) -> Tensor:
        return votes

    def highest(self, votes: Tensor) -> Tensor:
        return votes

    def mean_of_all(self, votes: Tensor) -> Tensor:
        return votes


@dataclass(frozen=True)
class OtherRanks:
    """Ranks that divide `heads` key-value heads, and their query heads, of which this rank has a `share`."""

    rank: Rank
    heads: int
    share: float
    exchange: Exchange

    def mean(self, votes: Tensor) -> Tensor:
        if not self._shares:
            return votes
        return self._own(all_reduce(self._placed(votes), self.exchange)) / (self.rank.count // self.heads)

    def highest(self, votes: Tensor) -> Tensor:
        """Votes are not negative, so zeros stand for the heads of other ranks."""
        return self._own(all_max(self._placed(votes), self.exchange)) if self._shares else votes

    def mean_of_all(self, votes: Tensor) -> Tensor:
        return all_reduce(votes * self.share, self.exchange)

    @property
    def _shares(self) -> bool:
        return self.heads < self.rank.count

    def _placed(self, votes: Tensor) -> Tensor:
        whole = votes.new_zeros(self.heads, votes.shape[1])
        self._own(whole).copy_(votes)
        return whole

    def _own(self, whole: Tensor) -> Tensor:
        span = self.rank.heads(self.heads)
        return whole[span.start : span.stop]


def across(rank: Rank, heads: int, queries: int, exchange: Exchange) -> Across:
    """Return how ranks vote on so many key-value heads, each with so many query heads."""
    if rank.count == 1:
        return Alone()
    return OtherRanks(rank, heads, len(rank.heads(heads * queries, heads)) / (heads * queries), exchange)
