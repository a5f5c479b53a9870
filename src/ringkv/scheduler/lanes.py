"""FreeLanes: which prompt has which staging lane and which of its entries.

A prompt whose requests all have slots stays in its lane, so that the next request with the same prompt needs no
prefill. Such prompts leave when their lane or their entries are needed, the least recently used first.
"""

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from operator import attrgetter

from ringkv.base.engine import Limits, lane_entries
from ringkv.scheduler.job import PendingPrompt


class FreeLanes:
    def __init__(self, limits: Limits) -> None:
        self._longest = limits.workspace.size
        self._space = Space(limits.staged_entries, self._longest) if limits.staged_entries else None
        self._free = list(range(limits.lanes))
        self._kept: OrderedDict[bytes, PendingPrompt] = OrderedDict()
        heapify(self._free)

    @property
    def free(self) -> list[int]:
        """Lanes that no request needs, those of kept prompts included."""
        return [*self._free, *(prompt.lane for prompt in self._kept.values() if prompt.lane is not None)]

    def take(self, prompt: PendingPrompt, beside: bool = False) -> bool:
        """Give a prompt a lane; False if there is none. beside: only if it is short and leaves room for the longest."""
        entries = self._entries(prompt)
        if not (self.free and self._may_have(entries, beside)):
            return False
        while not (self._free and (self._space is None or self._space.fits(entries, beside))):
            self.give(self._kept.popitem(last=False)[1])
        prompt.lane = heappop(self._free)
        if self._space:
            first = self._space.take(entries, beside)
            prompt.entries = range(first, first + entries)
        return True

    @property
    def has_room_for_short(self) -> bool:
        """Whether some prompt may get a lane although the next prompt needs too many entries."""
        return bool(self.free and self._space and self._may_have(1, beside=True))

    def has_room_beside(self, prompt: PendingPrompt) -> bool:
        """Whether a prompt is short and fits into what the longest leaves."""
        entries = self._entries(prompt)
        return bool(self._space and self.free and self._space.is_short(entries)) and self._may_have(entries, True)

    def _entries(self, prompt: PendingPrompt) -> int:
        return max(
            self._longest if job.stays else lane_entries(prompt.length, job.kv, self._longest) for job in prompt.jobs
        )

    def _may_have(self, entries: int, beside: bool) -> bool:
        """Whether so many entries in a row are free once the kept prompts have left."""
        kept = [prompt.entries for prompt in self._kept.values() if prompt.entries]
        return self._space is None or self._space.with_free(kept).fits(entries, beside)

    def keep(self, prompt: PendingPrompt, key: bytes | None) -> None:
        """Keep a prefilled prompt in its lane after its last request, if other prompts may share it."""
        if key is None:
            self.give(prompt)
        else:
            self._kept[key] = prompt

    def kept(self, key: bytes) -> PendingPrompt | None:
        """Return the kept prompt with this key."""
        return self._kept.get(key)

    def again(self, prompt: PendingPrompt) -> None:
        """Note that requests share a kept prompt again, so that it may not leave."""
        self._kept = OrderedDict((key, other) for key, other in self._kept.items() if other is not prompt)

    def give(self, prompt: PendingPrompt) -> None:
        """Free a prompt's lane."""
        assert prompt.lane is not None
        heappush(self._free, prompt.lane)
        if self._space and prompt.entries:
            self._space.give(prompt.entries.start, len(prompt.entries))


class FreeSlots:
    """The slots that no request has, handed out so that ranks that divide them run as many each.

    A decode step has as many rows for every rank as the busiest rank needs.
    ranks: slot s is on rank s % ranks; 1 if all slots are alike."""

    def __init__(self, slots: int, ranks: int = 1) -> None:
        self._free, self._ranks = set(range(slots)), ranks
        self._taken = Counter[int]()  # by rank

    def __len__(self) -> int:
        return len(self._free)

    def __iter__(self) -> Iterator[int]:
        return iter(self._free)

    def take(self) -> int:
        """Take a slot of the rank with the fewest taken; of these the first."""
        slot = min(self._free, key=lambda slot: (self._taken[slot % self._ranks], slot))
        self._free.remove(slot)
        self._taken[slot % self._ranks] += 1
        return slot

    def give(self, slot: int) -> None:
        """Give a slot back."""
        self._free.add(slot)
        self._taken[slot % self._ranks] -= 1


_start = attrgetter("start")


class Space:
    """The staged entries that lanes share. Each prompt gets a run of them, as long as it needs.

    Long lanes are put at the front, short lanes at the end. Short lanes are those that fit beside the longest.
    """

    def __init__(self, entries: int, longest: int) -> None:
        self._entries, self._longest = entries, longest
        self._free = [range(entries)] if entries else []

    def is_short(self, count: int) -> bool:
        return count <= self._entries - self._longest

    def fits(self, count: int, beside: bool = False) -> bool:
        """Whether so many entries in a row are free. beside: of those that the longest prompt leaves."""
        return bool(self._fitting(count, beside))

    def take(self, count: int, beside: bool = False) -> int:
        """Take so many entries in a row, which must be free, and return the first."""
        fits = self._fitting(count, beside)
        run = fits[-1] if self.is_short(count) else fits[0]
        first = run.stop - count if self.is_short(count) else run.start
        self._free.remove(run)
        for rest in (range(run.start, first), range(first + count, run.stop)):
            if rest:
                insort(self._free, rest, key=_start)
        return first

    def _fitting(self, count: int, beside: bool) -> list[range]:
        least = self._longest if beside else 0
        return [run for run in self._free if run.stop - max(run.start, least) >= count]

    def give(self, first: int, count: int) -> None:
        """Free entries that were taken."""
        run = range(first, first + count)
        for other in [free for free in self._free if free.stop == run.start or free.start == run.stop]:
            self._free.remove(other)
            run = range(min(run.start, other.start), max(run.stop, other.stop))
        insort(self._free, run, key=_start)

    def with_free(self, taken: Iterable[range]) -> "Space":
        """Return a copy in which these entries are free too."""
        copy = Space(0, self._longest)
        copy._entries, copy._free = self._entries, self._free.copy()
        for entries in taken:
            copy.give(entries.start, len(entries))
        return copy
