"""FreeSlots: the slots that no request has, handed out so that ranks that divide them run as many each.

A decode step has as many rows for every rank as the busiest one needs.
"""

from collections import Counter
from collections.abc import Iterator


class FreeSlots:
    """ranks: slot s is on rank s % ranks; 1 if all slots are alike."""

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
