"""Space: the staged entries that lanes share. Each prompt gets a run of them, as long as it needs."""

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple


class Run(NamedTuple):
    """Entries first .. stop-1."""

    first: int
    stop: int


class Space:
    """Long lanes are put at the front, short ones at the end. Short ones are those that fit beside the longest."""

    def __init__(self, entries: int, longest: int) -> None:
        self._entries, self._longest = entries, longest
        self._free = [Run(0, entries)] if entries else []

    def is_short(self, count: int) -> bool:
        return count <= self._entries - self._longest

    def fits(self, count: int, beside: bool = False) -> bool:
        """Whether so many entries in a row are free. beside: of those that the longest prompt leaves."""
        return bool(self._fitting(count, beside))

    def take(self, count: int, beside: bool = False) -> int:
        """Take so many entries in a row, which must be free, and return the first."""
        fits = self._fitting(count, beside)
        run = fits[-1] if self.is_short(count) else fits[0]
        first = run.stop - count if self.is_short(count) else run.first
        self._free.remove(run)
        for rest in (Run(run.first, first), Run(first + count, run.stop)):
            if rest.first < rest.stop:
                insort(self._free, rest)
        return first

    def _fitting(self, count: int, beside: bool) -> list[Run]:
        least = self._longest if beside else 0
        return [run for run in self._free if run.stop - max(run.first, least) >= count]

    def give(self, first: int, count: int) -> None:
        """Free entries that were taken."""
        run = Run(first, first + count)
        for other in [free for free in self._free if free.stop == run.first or free.first == run.stop]:
            self._free.remove(other)
            run = Run(min(run.first, other.first), max(run.stop, other.stop))
        insort(self._free, run)

    def with_free(self, taken: Iterable[range]) -> "Space":
        """Return a copy in which these entries are free too."""
        copy = Space(0, self._longest)
        copy._entries, copy._free = self._entries, self._free.copy()
        for entries in taken:
            copy.give(entries.start, len(entries))
        return copy
