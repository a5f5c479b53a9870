"""Rank: one of the processes that hold a model together, and which part of it that process has. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rank:
    """Rank `index` of `count`."""

    index: int = 0
    count: int = 1

    def span(self, units: int) -> range:
        """Return which of `units` equal pieces this rank has: about units / count of them, and at least one.

        If there are fewer pieces than ranks, neighbouring ranks have the same piece.
        """
        first, stop = (units * at // self.count for at in (self.index, self.index + 1))
        return range(first, max(stop, first + 1))

    def share(self, units: int) -> int:
        """Return how many of `units` equal pieces this rank has."""
        return len(self.span(units))


ALONE = Rank()
"""One process that holds a whole model."""
