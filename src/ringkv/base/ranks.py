"""Rank: one of the processes that divide a model, and the part that it has. No torch."""

from dataclasses import dataclass, replace
from typing import Literal

Exchange = Literal["none", "memory", "network"]
"""How ranks exchange results: one rank does not, ranks of one machine share memory, others use a network."""

AttentionParallel = Literal["heads", "slots"]
"""What of attention in decode ranks divide: the heads of every slot, or the slots, each with all heads."""

PIECE = 32  # elements; a share of whole pieces of a matrix can be packed


class RankEnded(RuntimeError):
    """A rank has ended. It ends the engine, so no request handles it as its own error."""


@dataclass(frozen=True)
class Rank:
    """Rank `index` of `count`, the world size.

    expert_parallel: each rank has whole experts instead of a share of every expert.
    """

    index: int = 0
    count: int = 1
    expert_parallel: bool = False

    def at(self, index: int) -> "Rank":
        """Return another of these ranks."""
        return replace(self, index=index)

    def heads(self, heads: int, groups: int | None = None) -> range:
        """Return this rank's heads: those of its groups, or if there are fewer groups than ranks, as many for each.

        groups: equal groups of heads; None: each head is one. If there are fewer heads than ranks, neighbouring ranks
        have the same head.
        """
        groups = groups or heads
        first, stop = self._span(groups if groups >= self.count else heads)
        each = heads // groups if groups >= self.count else 1
        return range(first * each, max(stop, first + 1) * each)

    def elements(self, size: int) -> range:
        """Return this rank's elements of `size`, in whole pieces if each gets one. Every element is on one rank."""
        piece = PIECE if size % PIECE == 0 and size // PIECE >= self.count else 1
        first, stop = self._span(size // piece)
        return range(first * piece, stop * piece)

    def experts(self, experts: int) -> range:
        """Return this rank's experts, if ranks have whole ones. Every expert is on one rank."""
        return range(*self._span(experts))

    @property
    def largest(self) -> "Rank":
        """The last rank. It has the most of everything: shares are rounded down for the ranks before it."""
        return self.at(self.count - 1)

    def _span(self, units: int) -> tuple[int, int]:
        return units * self.index // self.count, units * (self.index + 1) // self.count


ONE_RANK = Rank()
"""A rank that has the whole model."""


@dataclass(frozen=True)
class Nodes:
    """The machines of all ranks, with equally many ranks each. index: of this machine.

    address, port: where the first machine listens: on `port` for torch, and on the next one for messages.
    """

    count: int = 1
    index: int = 0
    address: str = "127.0.0.1"
    port: int = 29500

    def local(self, ranks: int) -> range:
        """Return the ranks of this machine, of so many in all."""
        each = ranks // self.count
        return range(self.index * each, (self.index + 1) * each)


ONE_NODE = Nodes()
