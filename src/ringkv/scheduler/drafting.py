"""Drafting: whether the drafts of a step pay, by what steps took and by how many drafts were sampled.

A step with drafts takes longer for all running requests. It pays if they get more tokens a second from it than from a
step without drafts.
"""

from collections.abc import Mapping

from ringkv.base.engine import Drafted
from ringkv.scheduler.job import Job

RECENT = 1 / 8  # weight of the newest step in a moving average
AGAIN = 32  # steps without drafts that would not pay, after which they are tried again; each time twice as many
UNKNOWN = 8  # steps with drafts after which one is done without, if none was measured
NOISE = 1e-3  # seconds; steps do not differ by less


class Drafting:
    """running: by slot, as the scheduler has them."""

    def __init__(self, running: Mapping[int, Job]) -> None:
        self._running = running
        self._seconds: dict[tuple[int, bool], float] = {}  # of a step, by its requests and whether it had drafts
        self._step: tuple[int, bool] | None = None  # the step that is fed; None: it is not measured
        self._alike = 0  # steps with a proposal since the last one that was decided the other way
        self._again = AGAIN
        self._prepares = False  # the draft model is being prefilled for drafts that were chosen

    def choose(self, proposed: Drafted) -> Drafted:
        """Return the drafts of the next step: all that are proposed, or none."""
        drafts = proposed if proposed and (self._prepares or self._tries(proposed)) else {}
        self._step, self._prepares = (len(self._running), False), False
        return drafts

    def fed(self, drafts: Mapping[int, int]) -> None:
        """Report how many drafts the step has, by slot of those that were chosen."""
        for slot, count in drafts.items():
            self._running[slot].feed_drafts(count)
        has_drafts = any(drafts.values())
        self._prepares = len(drafts) > 0 and not has_drafts
        self._step = None if self._prepares else (len(self._running), has_drafts)

    def sampled(self, seconds: float | None) -> None:
        """Learn how long the step took; None if other work was done too."""
        if seconds is not None and self._step and self._step[0]:
            before = self._seconds.get(self._step, seconds)
            self._seconds[self._step] = before + RECENT * (seconds - before)

    def _tries(self, proposed: Drafted) -> bool:
        pays = self._pays(proposed)
        self._alike += 1
        if pays:
            self._again = AGAIN
        if self._alike < (UNKNOWN if pays else self._again) or (pays and (len(self._running), False) in self._seconds):
            return pays
        self._alike = 0
        self._again *= 1 if pays else 2
        return not pays

    def _pays(self, proposed: Drafted) -> bool:
        count = len(self._running)
        plain, drafted = (self._seconds.get((count, has)) for has in (False, True))
        if plain is None or drafted is None:
            return True
        sizes = {slot: tokens if isinstance(tokens, int) else len(tokens) for slot, tokens in proposed.items()}
        gain = sum(self._running[slot].expected(size) for slot, size in sizes.items())
        return count * (drafted - NOISE) <= (count + gain) * plain
