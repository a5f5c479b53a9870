from itertools import pairwise
from math import log2
from random import Random

import pytest

from ringkv.evaluation.report.scale import Scale, apart, clusters, round_ends


def test_a_log_scale_puts_equal_ratios_at_equal_distances() -> None:
    scale = Scale(1, 16, 100, 500, log2)
    assert [scale(value) for value in (1, 2, 4, 16)] == [100, 200, 300, 500]
    assert Scale(3, 3, 0, 10)(3) == 5


@pytest.mark.parametrize("values", [(0, 100), (37.2, 81.6), (-0.4, 0.9), (15.9, 33), (5, 5), (1e6, 1.7e6)])
def test_round_ends_enclose_the_values_in_few_equal_steps(values: tuple[float, float]) -> None:
    found = round_ends(values)
    steps = [b - a for a, b in pairwise(found)]
    assert found[0] <= min(values)
    assert found[-1] >= max(values)
    assert 2 <= len(found) <= 7
    assert steps == pytest.approx([steps[0]] * len(steps))
    assert f"{steps[0]:e}"[0] in "125"


def test_positions_are_apart_in_their_order_and_unchanged_if_they_were() -> None:
    dice = Random(3)
    for _ in range(50):
        wanted = [dice.uniform(0, 100) for _ in range(8)]
        found = apart(wanted, 10)
        in_order = sorted(range(8), key=wanted.__getitem__)
        assert all(found[b] - found[a] >= 10 - 1e-9 for a, b in pairwise(in_order))
        assert sum(found) == pytest.approx(sum(wanted))
    assert apart([50, 0, 20], 10) == [50, 0, 20]


def test_values_within_a_few_percent_are_one_cluster() -> None:
    assert clusters([25, 50, 24.5, 12, 50.1]) == [[12], [24.5, 25], [50, 50.1]]
