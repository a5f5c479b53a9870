"""Histogram: how many observations are at most as large as each of some bounds, as Prometheus counts them."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate


@dataclass(frozen=True)
class Histogram:
    """counts: observations above the bound before and at most this bound; the last count is of those above all bounds.

    total: the sum of all observations.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def of(cls, bounds: Sequence[float]) -> "Histogram":
        """Return a histogram without observations. `bounds` increase."""
        return cls(tuple(bounds), (0,) * (len(bounds) + 1))

    @property
    def count(self) -> int:
        return sum(self.counts)

    def plus(self, value: float) -> "Histogram":
        """Return the histogram with one observation more."""
        index = bisect_left(self.bounds, value)
        counts = (*self.counts[:index], self.counts[index] + 1, *self.counts[index + 1 :])
        return replace(self, counts=counts, total=self.total + value)

    def since(self, earlier: "Histogram") -> "Histogram":
        """Return what was observed after an earlier state; everything if it has begun again since."""
        if any(now < before for now, before in zip(self.counts, earlier.counts, strict=True)):
            return self
        counts = tuple(now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        return replace(self, counts=counts, total=self.total - earlier.total)

    def quantile(self, share: float) -> float | None:
        """Return the value that so large a share of the observations is at most; None without observations.

        Observations between two bounds count as evenly spread. One above all bounds counts as the highest bound.
        """
        rank, low, below = share * self.count, 0.0, 0
        for bound, seen in self.cumulative():
            if seen >= rank and seen > below:
                is_above_all = bound == float("inf")
                return self.bounds[-1] if is_above_all else low + (bound - low) * (rank - below) / (seen - below)
            low, below = bound, seen
        return None

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound, then infinity, with the number of observations that are at most as large."""
        yield from zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True)
