"""Rank: one of the processes that hold a model together, and which part of it that process has. No torch."""

from dataclasses import dataclass
from typing import Literal

Exchange = Literal["none", "memory", "network"]
"""How ranks add up their results: one rank has none, ranks of one machine share memory, others use a network."""


PIECE = 32  # elements that ranks do not divide, so that every rank's share of a matrix can be packed


@dataclass(frozen=True)
class Rank:
    """Rank `index` of `count`."""

    index: int = 0
    count: int = 1

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
        """Return this rank's elements of `size`, whole pieces if there are enough of them. Each is on one rank."""
        piece = PIECE if size % PIECE == 0 and size // PIECE >= self.count else 1
        first, stop = self._span(size // piece)
        return range(first * piece, stop * piece)

    def _span(self, units: int) -> tuple[int, int]:
        return units * self.index // self.count, units * (self.index + 1) // self.count


ALONE = Rank()
"""One process that holds a whole model."""


@dataclass(frozen=True)
class Nodes:
    """The machines of all ranks, which have as many ranks each. index: of this one.

    address, port: where the first machine listens: on `port` for torch, and on the next one for messages.
    """

    count: int = 1
    index: int = 0
    address: str = "127.0.0.1"
    port: int = 29500


ONE_NODE = Nodes()
