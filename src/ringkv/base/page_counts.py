"""page_counts: how many pages of a slot steps read, from its layout and length alone."""

from typing import NamedTuple

from ringkv.base.events import PageUsage
from ringkv.base.kv import KVChoice, Layout

EVERY_PAGE = 2**31 - 1
RESIDENT = 2  # times as many pages as a step reads stay on a GPU: those that steps read in turn need not be recalled


class PageCounts(NamedTuple):
    """Pages that a step reads of each head: most of them, of which the first and the newest are always read."""

    most: int
    leading: int
    newest: int

    @property
    def pinned(self) -> int:
        """How many of the others are pinned: half, as many as ArkVale recalls at most."""
        return (self.most - self.leading - self.newest) // 2

    @classmethod
    def of(cls, layout: Layout, page: int) -> "PageCounts | None":
        """Whole pages, and at least one besides the leading and newest. None if a step reads everything."""
        return cls._of(layout.read, layout.leading, layout.newest, page) if layout.read else None

    @classmethod
    def _of(cls, read: int, leading: int, newest: int, page: int) -> "PageCounts":
        first, last = -(-leading // page), -(-newest // page) + 1
        return cls(max(read // page, first + last + 1), first, last)

    @classmethod
    def of_choice(cls, choice: KVChoice, page: int) -> "PageCounts":
        """Return what slots of a choice that reads pages, and has a budget, will have."""
        assert choice.budget is not None
        return cls._of(choice.budget, choice.sinks, choice.recent_entries(choice.budget), page)


EVERYTHING = PageCounts(EVERY_PAGE, 0, 1)


def entries_read(choice: KVChoice, entries: int, page: int) -> int:
    """Return the entries of each head that a step reads of a slot with so many, in pages unless `page` is 0."""
    if page and choice.reads_pages:
        return min(entries, PageCounts.of_choice(choice, page).most * page)
    return entries if choice.budget is None else min(entries, choice.budget)


def resident_pages(choice: KVChoice, capacity: int, page: int) -> int:
    """Return the pages of each head that stay on a GPU if all `capacity` entries are in the host's memory."""
    return min(capacity // page, RESIDENT * PageCounts.of_choice(choice, page).most)


def most_read(layout: Layout, page: int) -> int:
    """Return the pages of each head that a step reads at most."""
    held, counts = -(-layout.capacity // page), PageCounts.of(layout, page)
    return held if counts is None else min(held, counts.most)


def page_usage(layout: Layout, page: int, fed: int, resident: int | None = None) -> PageUsage | None:
    """Return what the steps of an answer have read once so many of its tokens were fed.

    The result is None if they read everything. Each token that is fed takes an entry more. resident: pages that stay
    where steps read them, at most, or None for all.
    """
    counts = PageCounts.of(layout, page) if page else None
    if counts is None:
        return None
    first = layout.live(layout.prompt)
    held = -(-(first + fed) // page)
    read, passed = (
        _summed(first + fed, page, most) - _summed(first, page, most) for most in (counts.most, max(held, 1))
    )
    return PageUsage(held, held if resident is None else min(held, resident), counts.most, read, passed - read)


def _summed(entries: int, page: int, most: int) -> int:
    """Return the pages of slots with 1, 2, ... `entries` tokens, at most so many of each, in all."""
    below = min(entries, most * page)
    pages, rest = divmod(below, page)
    return page * pages * (pages + 1) // 2 + rest * (pages + 1) + (entries - below) * most
