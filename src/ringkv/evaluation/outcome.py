"""outcome: what a measured difference says, in words that the report and the terminal share.

The one rule: a difference from the full cache is *worse* or *better* if its 95% interval excludes zero. If the interval
contains zero, it is *noise* if that shows that there is no large difference; otherwise there are *too few* prompts.
It does not show that if there is no interval (`bootstrap.FEWEST`), if it spans more than `WIDEST` points, or if it has
no width because fewer than `EQUAL` prompts have all the same difference.
"""

from math import ceil, floor, isfinite, log10
from typing import Literal

from ringkv.evaluation.bootstrap import Interval

Outcome = Literal["worse", "better", "noise", "few"]

WIDEST = 20.0  # percentage points from one end of the interval to the other
SPREAD = 0.5  # the largest standard deviation of scores between 0 and 1
RULE_OF_THREE = 3  # what n prompts never showed may be in 3 / n of all (Hanley 1983)
EQUAL = 15  # RULE_OF_THREE / EQUAL is WIDEST
NORMAL = 1.96  # standard errors from the mean to an end of a 95% interval
WORDS: dict[Outcome, str] = {
    "worse": "less than the full cache",
    "better": "more than the full cache",
    "noise": "no difference found",
    "few": "too few prompts",
}
LEGEND = (
    f"There are too few prompts if there is no interval, if it contains zero and spans more than {WIDEST:g} points, "
    f"or if fewer than {EQUAL} prompts make no difference at all."
)


def outcome(difference: Interval, prompts: int, more_is_better: bool = True) -> Outcome:
    """Return what a difference in points, or in percent of the full cache's, over so many prompts says."""
    if not difference.is_noise:
        return "better" if (difference.mean > 0) == more_is_better else "worse"
    is_few = width(difference) > WIDEST or (not width(difference) and prompts < EQUAL)
    return "few" if is_few else "noise"


def width(interval: Interval) -> float:
    return interval.high - interval.low


def prompts_needed(prompts: int, share: Interval) -> int:
    """Return about how many prompts an interval of `WIDEST` points takes, rounded up to two digits.

    An interval narrows with the root of the number of prompts. Without one, scores are taken to spread as much as they
    can, as if the full cache answered everything right.
    """
    if not width(share):
        return EQUAL
    if isfinite(share.low):
        return _rounded(prompts * (width(share) / WIDEST) ** 2)
    return _rounded((2 * NORMAL * 100 * SPREAD / WIDEST) ** 2)


def _rounded(count: float) -> int:
    unit: int = 10 ** max(0, floor(log10(max(1.0, count))) - 1)
    return unit * ceil(count / unit)
