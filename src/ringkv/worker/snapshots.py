"""Snapshots: what a loop holds, for those who watch it. Nothing is taken while nobody does."""

from collections.abc import Callable
from time import monotonic

from ringkv.base.messages import Slots
from ringkv.scheduler.loop import Loop

EVERY = 0.25  # seconds


class Snapshots:
    """Of one loop, from when somebody begins to watch until nobody does. clock: returns seconds."""

    def __init__(self, loop: Loop, clock: Callable[[], float] = monotonic) -> None:
        self._loop, self._clock = loop, clock
        self._due = 0.0
        self._last: Slots | None = None

    def next(self) -> Slots | None:
        """Return a snapshot if one is due and differs from the last one. Call it between steps."""
        now = self._clock()
        if now < self._due:
            return None
        self._due = now + EVERY
        if (slots := self._loop.slots()) == self._last:
            return None
        self._last = slots
        return slots
