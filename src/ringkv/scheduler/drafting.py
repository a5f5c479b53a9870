"""Drafting: whether the drafts of a step pay, by what steps took and by how many drafts were sampled.

A step with drafts takes longer for all running requests. It pays if they get more tokens a second from it than from a
step without drafts.
"""

from collections.abc import Mapping, Sequence

from ringkv.scheduler.job import Job

RECENT = 1 / 8  # weight of the newest step in a moving average
AGAIN = 32  # steps without drafts that would not pay, after which they are tried again
UNKNOWN = 8  # steps with drafts after which one is done without, if none was measured
NOISE = 1e-3  # seconds; steps do not differ by less

Drafts = Mapping[int, Sequence[int]]
"""Guesses of the tokens that follow, by slot."""


class Drafting:
    """running: by slot, as the scheduler has them."""

    def __init__(self, running: Mapping[int, Job]) -> None:
        self._running = running
        self._seconds: dict[tuple[int, bool], float] = {}  # of a step, by its requests and whether it had drafts
        self._step = 0, False  # the step that is fed
        self._alike = 0  # steps with a proposal since the last one that was decided the other way

    def choose(self, proposed: Drafts) -> Drafts:
        """Return the drafts of the next step: all that are proposed, or none."""
        drafts = proposed if proposed and self._tries(proposed) else {}
        for slot, tokens in drafts.items():
            self._running[slot].feed_drafts(len(tokens))
        self._step = len(self._running), bool(drafts)
        return drafts

    def sampled(self, seconds: float | None) -> None:
        """Learn how long the step took; None if other work was done too."""
        if seconds is not None and self._step[0]:
            before = self._seconds.get(self._step, seconds)
            self._seconds[self._step] = before + RECENT * (seconds - before)

    def _tries(self, proposed: Drafts) -> bool:
        pays = self._pays(proposed)
        self._alike += 1
        if self._alike < (UNKNOWN if pays else AGAIN) or (pays and (len(self._running), False) in self._seconds):
            return pays
        self._alike = 0
        return not pays

    def _pays(self, proposed: Drafts) -> bool:
        count = len(self._running)
        plain, drafted = (self._seconds.get((count, has)) for has in (False, True))
        if plain is None or drafted is None:
            return True
        gain = sum(self._running[slot].expected(len(tokens)) for slot, tokens in proposed.items())
        return count * (drafted - NOISE) <= (count + gain) * plain
