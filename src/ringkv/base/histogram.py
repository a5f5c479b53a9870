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

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound, then infinity, with the number of observations that are at most as large."""
        yield from zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True)
