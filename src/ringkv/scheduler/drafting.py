"""Drafting: whether the drafts of a step pay, by what steps took and by how many drafts were sampled.

A step with drafts takes longer for all running requests. It pays if they get more tokens a second from it than from a
step without drafts.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from functools import partial
from statistics import median

from ringkv.base.engine import Drafted
from ringkv.scheduler.job import Job

RECENT = 15  # steps whose median time is expected of the next one
AGAIN = 32  # steps without drafts that would not pay, after which they are tried again; each time twice as many
AGAIN_WITH_MODEL = 256  # the same with a draft model, which then has to read what it has missed
OF_REQUEST = 1 / 4  # weight of the newest request in what is expected of a draft model
UNKNOWN = 8  # steps with drafts after which one is done without, if none was measured
NOISE = 1e-3  # seconds; steps do not differ by less


class Drafting:
    """running: by slot, as the scheduler has them. has_model: whether a draft model makes the drafts."""

    def __init__(self, running: Mapping[int, Job], has_model: bool = False) -> None:
        self._running, self._has_model = running, has_model
        self._usual = AGAIN_WITH_MODEL if has_model else AGAIN
        self._hit_rate = 0.8  # of the draft model, in the requests before
        # Of the last steps, by their requests and whether they had drafts.
        self._seconds = defaultdict[tuple[int, bool], deque[float]](partial(deque, maxlen=RECENT))
        self._step: tuple[int, bool] | None = None  # the step that is fed; None: it is not measured
        self._paid, self._alike = True, 0  # whether drafts paid, and for how many steps with a proposal in turn
        self._again = self._usual
        self._prepares = False  # the draft model is being prefilled for drafts that were chosen

    def enter(self, job: Job) -> None:
        """Expect of a request's drafts what those of the requests before were, if a model makes them."""
        if self._has_model:
            job.hit_rate = self._hit_rate

    def leave(self, job: Job) -> None:
        """Learn from a request that ends."""
        if job.drafted:
            self._hit_rate += OF_REQUEST * (job.accepted / job.drafted - self._hit_rate)

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
            self._seconds[self._step].append(seconds)

    def _tries(self, proposed: Drafted) -> bool:
        pays = self._pays(proposed)
        self._alike = self._alike + 1 if pays == self._paid else 1
        self._paid = pays
        if pays:
            self._again = self._usual
        if self._alike < (UNKNOWN if pays else self._again) or (pays and (len(self._running), False) in self._seconds):
            return pays
        self._alike = 0
        self._again *= 1 if pays else 2
        return not pays

    def _pays(self, proposed: Drafted) -> bool:
        count = len(self._running)
        if any((count, has) not in self._seconds for has in (False, True)):
            return True
        plain, drafted = (median(self._seconds[count, has]) for has in (False, True))
        sizes = {slot: tokens if isinstance(tokens, int) else len(tokens) for slot, tokens in proposed.items()}
        gain = sum(self._running[slot].expected(size) for slot, size in sizes.items())
        return count * (drafted - NOISE) <= (count + gain) * plain
