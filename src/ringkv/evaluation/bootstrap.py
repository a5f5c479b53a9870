"""Bootstrap: how much of a mean over prompts may be chance.

Efron and Tibshirani, An Introduction to the Bootstrap (1993), percentiles. Prompts are drawn again within each task,
and each task counts alike, however many prompts it has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

DRAWS, SEED = 10_000, 0
CONFIDENCE = 0.95
FEWEST = 5  # prompts of a task that an interval is drawn from: fewer are often all alike
FEWEST_EACH = 2  # where the mean is over several tasks


@dataclass(frozen=True)
class Interval:
    """A mean, and the two ends that 95% of the drawn means lie between; endless for too few prompts."""

    mean: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether it holds zero."""
        return self.low <= 0 <= self.high

    def through(self, shown: Callable[[float], float]) -> "Interval":
        """The same on another scale, `shown` being monotone."""
        if not isfinite(self.low):
            return Interval(shown(self.mean), -inf, inf)
        return Interval(shown(self.mean), *sorted((shown(self.low), shown(self.high))))


def mean_of(tasks: Sequence[Sequence[float]]) -> Interval | None:
    """Of the mean over tasks of the mean over prompts, from a value for each prompt; None without any of a task."""
    return _interval([np.array(one, dtype=float)[:, None] for one in tasks], lambda means: means[..., 0])


def share_of(tasks: Sequence[Sequence[tuple[float, float]]]) -> Interval | None:
    """Of the first value's mean over the second's, both of the same prompts, and drawn together.

    None also where the second's mean is zero.
    """
    if not any(second for one in tasks for _, second in one):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):  # a draw of prompts whose second value is zero
        return _interval([np.array(one, dtype=float) for one in tasks], lambda means: means[..., 0] / means[..., 1])


def _interval(tasks: Sequence[np.ndarray], of: Callable[[np.ndarray], np.ndarray]) -> Interval | None:
    """Of a figure of the means; float [prompts, values] for each task."""
    if not tasks or not all(map(len, tasks)):
        return None
    mean = float(of(np.mean([one.mean(0) for one in tasks], axis=0)))
    if min(map(len, tasks)) < (FEWEST if len(tasks) == 1 else FEWEST_EACH):
        return Interval(mean, -inf, inf)
    rng = np.random.default_rng(SEED)
    drawn = of(np.mean([_resampled(rng, one) for one in tasks], axis=0))
    edge = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(drawn, [edge, 100 - edge])
    return Interval(mean, float(low), float(high))


def _resampled(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    """float [DRAWS, values]: means of as many prompts, drawn with replacement."""
    drawn = values[rng.integers(len(values), size=(DRAWS, len(values)))]
    return np.asarray(drawn.mean(1))
