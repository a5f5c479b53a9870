"""shares: how many tokens each head selects if that is known before the prompt is.

L layers of a group, H key-value heads, K selected tokens of a head on average.
Source: PyramidKV (arXiv 2406.02069, section 3.2): budgets fall by equal steps from the first layer to the last, which
has K / 20.
"""

from collections.abc import Sequence
from typing import NamedTuple

BETA = 20
"""K over the budget of the last layer, as published."""

SMALLEST = 1e-9
"""Of a share, relative to the largest."""


class Bounds(NamedTuple):
    """Tokens that a head selects: at least, and at most."""

    least: int
    most: int


def pyramid(layers: int) -> list[float]:
    """Return the shares of layers, which fall by equal steps; their mean is 1."""
    last = 1 / BETA
    step = 2 * (1 - last) / max(1, layers - 1)
    return [1.0] if layers == 1 else [2 - last - step * layer for layer in range(layers)]


def divided(shares: Sequence[float], total: int, bounds: Bounds) -> list[int]:
    """Return counts that add up to the total: in proportion to shares, as far as bounds allow."""
    return divided_within(shares, total, [bounds] * len(shares))


def divided_within(shares: Sequence[float], total: int, bounds: Sequence[Bounds]) -> list[int]:
    """Return counts that add up to the total: in proportion to shares, each as far as its bounds allow.

    The total is within the bounds of all together. Of equal remainders the first is rounded up.
    """
    least, most = (sum(ends) for ends in zip(*bounds, strict=True))
    assert least <= total <= most, "the bounds allow the total"
    quotas = _quotas(shares, total, bounds)
    counts = [int(quota) for quota in quotas]
    remainders = sorted(range(len(shares)), key=lambda at: counts[at] - quotas[at])
    left = total - sum(counts)
    for at in [at for at in remainders if counts[at] < bounds[at].most][:left]:
        counts[at] += 1
    assert sum(counts) == total
    return counts


def _quotas(shares: Sequence[float], total: int, bounds: Sequence[Bounds]) -> list[float]:
    """Return shares times the largest factor by which they are, within the bounds, at most the total."""
    positive = [max(share / (max(shares) or 1.0), SMALLEST) for share in shares]

    def quotas(factor: float) -> list[float]:
        return [min(max(factor * share, own.least), own.most) for share, own in zip(positive, bounds, strict=True)]

    low, high = 0.0, (max(own.most for own in bounds) + 1) / SMALLEST
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if sum(quotas(middle)) <= total else (low, middle)
    return quotas(low)
