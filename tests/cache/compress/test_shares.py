"""Counts of heads by shares, against handing out one token after the other."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.cache.compress.shares import BETA, Bounds, divided, pyramid


def by_hand(shares: list[float], total: int, bounds: Bounds) -> list[int]:
    """Each head has its least; every further token goes to the head that is farthest below its share."""
    counts = [bounds.least] * len(shares)
    for _ in range(total - sum(counts)):
        free = [at for at in range(len(shares)) if counts[at] < bounds.most]
        counts[min(free, key=lambda at: counts[at] / shares[at])] += 1
    return counts


@pytest.mark.parametrize("seed", range(8))
def test_counts_are_those_of_handing_out_tokens_up_to_one(seed: int) -> None:
    rng = random.Random(seed)
    shares = [rng.random() ** 3 + 1e-3 for _ in range(24)]
    bounds = Bounds(rng.randint(0, 20), rng.randint(130, 400))
    found, want = divided(shares, 24 * 100, bounds), by_hand(shares, 24 * 100, bounds)
    assert sum(found) == sum(want) == 24 * 100
    assert max(abs(a - b) for a, b in zip(found, want, strict=True)) <= 2
    assert bounds.least <= min(found) < max(found) <= bounds.most


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_sums_are_exact_and_within_bounds_for_any_shares(shares: list[float], least: int, more: int, room: int) -> None:
    average = least + more
    found = divided(shares, average * len(shares), Bounds(least, average + room))
    assert sum(found) == average * len(shares)
    assert all(least <= count <= average + room for count in found)


def test_shares_in_whole_tokens_are_met_exactly() -> None:
    assert divided([1, 2, 3, 4], 100, Bounds(0, 100)) == [10, 20, 30, 40]
    assert divided([1, 2, 3, 4], 100, Bounds(15, 35)) == [15, 20, 30, 35]
    assert divided([0, 0, 0], 30, Bounds(0, 30)) == [10, 10, 10]


@pytest.mark.parametrize("layers", [2, 3, 16, 30])
def test_a_pyramid_falls_by_equal_steps_to_a_twentieth_of_the_mean(layers: int) -> None:
    shares = pyramid(layers)
    steps = [first - second for first, second in pairwise(shares)]
    assert steps == pytest.approx([steps[0]] * (layers - 1))
    assert steps[0] > 0
    assert sum(shares) == pytest.approx(layers)
    assert shares[-1] == pytest.approx(1 / BETA)
    assert pyramid(1) == [1]
