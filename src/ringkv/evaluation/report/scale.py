"""scale: maps values to coordinates, and names round values between two ends."""

from collections.abc import Callable, Iterable
from math import ceil, floor, log, log10
from typing import NamedTuple


class Scale(NamedTuple):
    """Maps low .. high to the coordinates start .. end, after `of`, which is monotone: log2 for a log scale."""

    low: float
    high: float
    start: float
    end: float
    of: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        low, high = self.of(self.low), self.of(self.high)
        share = (self.of(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def round_ends(values: Iterable[float], most: int = 6) -> list[float]:
    """Return at most `most` round values, equally far apart, from below the values to above them."""
    found = list(values)
    low, high = min(found), max(found)
    if low == high:
        low, high = low - 1, high + 1
    steps = (scale * 10**power for power in range(floor(log10(high - low)) - 2, 99) for scale in (1, 2, 5))
    step = next(one for one in steps if ceil(high / one - 1e-9) - floor(low / one + 1e-9) < most)
    return [step * at for at in range(floor(low / step + 1e-9), ceil(high / step - 1e-9) + 1)]


def clusters(values: Iterable[float], ratio: float = 1.08) -> list[list[float]]:
    """Group positive values, in order; within a group each is at most `ratio` times the one before."""
    found: list[list[float]] = []
    for value in sorted(set(values)):
        if found and log(value / found[-1][-1]) <= log(ratio):
            found[-1].append(value)
        else:
            found.append([value])
    return found


def apart(wanted: list[float], least: float) -> list[float]:
    """Return positions at least `least` apart, near the ones that are wanted, in the order given."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    blocks: list[list[float]] = []  # centre of a run of neighbours, and their number
    for place in order:
        blocks.append([wanted[place], 1])
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < least * (blocks[-1][1] + blocks[-2][1]) / 2:
            (centre, count), (before, number) = blocks.pop(), blocks.pop()
            blocks.append([(centre * count + before * number) / (count + number), count + number])
    found = [centre + least * (at - (count - 1) / 2) for centre, count in blocks for at in range(int(count))]
    return [found[order.index(place)] for place in range(len(wanted))]
