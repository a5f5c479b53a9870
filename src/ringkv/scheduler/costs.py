"""Costs: how long the work between two tokens of a running request takes, learned from measured times.

The seconds are a weighted sum of the fields of `Work`. The weights follow the measurements with a Kalman filter whose
state is a slow random walk, so they adapt if the machine gets slower. A margin covers most of the scatter.
"""

from typing import NamedTuple

from ringkv.base.kv import Layout
from ringkv.base.workspace import Workspace

DRIFT = 0.01  # standard deviation of a weight's change between two measurements, relative to the weight
NOISE = 0.1  # standard deviation of a measurement, relative to it
HIGH, RATE = 0.95, 0.02  # the share of measurements that a prediction covers, and how fast its margin follows
MOST_MARGIN = 2.0
OUTLIER = 3.0  # times the prediction; a measurement above it counts as that
SURE = 16  # measurements after which outliers are recognised


class Work(NamedTuple):
    """What happens between two samplings.

    rows: of passes. pairs: of a token and a token before it, that a prompt's attention or a review scores. entries: of
    slots, that decode attention reads. ends: prompts that are compressed and inserted, or compacted, and slots whose
    review ends. moved: tokens that are copied to or from the staging, or in it. scored: rows of prompts whose next
    tokens get log-probabilities.
    """

    rows: int = 0
    pairs: int = 0
    entries: int = 0
    ends: int = 0
    moved: int = 0
    scored: int = 0

    def __add__(self, other: "Work") -> "Work":  # type: ignore[override]
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


SCALE = (1.0, 1 / 64, 1e-5, 1e-4, 1.0, 1e-3, 1 / 64)  # of the constant and the fields, so that each costs about as much


def chunk_work(start: int, stop: int, workspace: Workspace | None = None) -> Work:
    """Return the work of prefilling tokens start .. stop-1 of a prompt, and of compacting its lane before them."""
    dropped = workspace.dropped(start) if workspace else 0
    first, last = start - dropped, stop - dropped
    work = Work(rows=stop - start, pairs=(last * last - first * first) // 2)
    return work + Work(ends=1, moved=workspace.size) if workspace and workspace.compacts(start) else work


def review_work(layout: Layout, seen: int) -> Work:
    """Return the work of reviewing a slot that has seen so many tokens, before it is fed: that of the layers scored."""
    layers = len(layout.scored(seen))
    pairs = layout.unscored(seen) * layout.live(seen) * layers // layout.layers
    return Work(pairs=pairs, ends=int(layout.is_due(seen)))


class Costs:
    def __init__(self) -> None:
        size = len(SCALE)
        self._weights = [0.0] * size
        self._variance = [[float(i == j) for j in range(size)] for i in range(size)]
        self._measured = 0
        self._margin = 1.0

    def predict(self, work: Work) -> float:
        """Return the seconds that this work takes at most, in 19 of 20 cases; 0 if nothing is known."""
        return self._margin * self._mean(_features(work))

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from a measurement."""
        x = _features(work)
        expected = self._mean(x)
        if self._measured >= SURE:
            self._follow(seconds / max(expected, 1e-9))
            seconds = min(seconds, OUTLIER * expected)
        self._measured += 1
        self._update(x, seconds)

    def _mean(self, x: list[float]) -> float:
        return sum(max(weight, 0.0) * feature for weight, feature in zip(self._weights, x, strict=True))

    def _update(self, x: list[float], seconds: float) -> None:
        """One step of the filter: x is the measurement's row, the noise is relative."""
        variance = self._variance
        spread = [sum(a * b for a, b in zip(row, x, strict=True)) for row in variance]
        total = sum(a * b for a, b in zip(spread, x, strict=True)) + (NOISE * seconds) ** 2 + 1e-12
        gain = [value / total for value in spread]
        error = seconds - sum(a * b for a, b in zip(self._weights, x, strict=True))
        self._weights = [weight + step * error for weight, step in zip(self._weights, gain, strict=True)]
        for i, row in enumerate(variance):
            variance[i] = [value - gain[i] * other for value, other in zip(row, spread, strict=True)]
            variance[i][i] = min(1.0, variance[i][i] + (DRIFT * self._weights[i]) ** 2)

    def _follow(self, ratio: float) -> None:
        """Move the margin towards the quantile HIGH of measured over expected seconds."""
        step = RATE * (HIGH if ratio > self._margin else HIGH - 1)
        self._margin = min(MOST_MARGIN, max(1.0, self._margin + step))


def _features(work: Work) -> list[float]:
    return [value * scale for value, scale in zip((1, *work), SCALE, strict=True)]
