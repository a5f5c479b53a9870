"""Bootstrap: confidence intervals of means over prompts.

Percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993). Prompts are resampled within each
task, and each task has the same weight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

RESAMPLES, SEED = 10_000, 0
CONFIDENCE = 0.95
FEWEST = 5  # least prompts for an interval: fewer often have equal scores
FEWEST_EACH = 2  # least prompts per task, if the mean is over several tasks


@dataclass(frozen=True)
class Interval:
    """A mean with the ends of its 95% interval; the ends are infinite for too few prompts."""

    mean: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether the interval contains zero."""
        return self.low <= 0 <= self.high

    def through(self, shown: Callable[[float], float]) -> "Interval":
        """Return the interval on another scale. `shown` must be monotone."""
        if not isfinite(self.low):
            return Interval(shown(self.mean), -inf, inf)
        return Interval(shown(self.mean), *sorted((shown(self.low), shown(self.high))))


def mean_of(tasks: Sequence[Sequence[float]]) -> Interval | None:
    """The mean over tasks of the mean over prompts, from a value per prompt. None if a task has no prompts."""
    return _interval([np.array(task, dtype=float)[:, None] for task in tasks], lambda means: means[..., 0])


def share_of(tasks: Sequence[Sequence[tuple[float, float]]]) -> Interval | None:
    """The mean of the first values over the mean of the second, from a pair of values per prompt.

    Both values of a prompt are resampled together. None if a task has no prompts, or if all second values are zero.
    """
    if not any(second for task in tasks for _, second in task):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample may have only zeros as second values
        return _interval([np.array(task, dtype=float) for task in tasks], lambda means: means[..., 0] / means[..., 1])


def _interval(tasks: Sequence[np.ndarray], of: Callable[[np.ndarray], np.ndarray]) -> Interval | None:
    """The interval of `of` applied to the means; each task is float [prompts, values]."""
    if not tasks or not all(map(len, tasks)):
        return None
    mean = float(of(np.mean([task.mean(0) for task in tasks], axis=0)))
    if min(map(len, tasks)) < (FEWEST if len(tasks) == 1 else FEWEST_EACH):
        return Interval(mean, -inf, inf)
    rng = np.random.default_rng(SEED)
    # Of each task [RESAMPLES, values]: means of as many prompts, sampled with replacement.
    samples = [task[rng.integers(len(task), size=(RESAMPLES, len(task)))].mean(1) for task in tasks]
    resampled = of(np.mean(samples, axis=0))
    edge = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(resampled, [edge, 100 - edge])
    return Interval(mean, float(low), float(high))
