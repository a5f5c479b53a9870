"""Intervals compared with the delta method and values worked out by hand."""

from math import inf, sqrt
from random import Random
from statistics import fmean, stdev

import pytest

from ringkv.evaluation.bootstrap import mean_of, share_of


def test_a_share_is_of_the_means_and_not_a_mean_of_shares():
    found = share_of([[(1, 1), (0, 3), (1, 1), (0, 3), (1, 1)]])
    assert found.mean == pytest.approx(3 / 9)


def test_each_task_has_the_same_weight():
    assert mean_of([[1.0] * 50, [0.0] * 2]).mean == 0.5
    assert share_of([[(1, 1)] * 50, [(0, 3)] * 2]).mean == pytest.approx(0.5 / 2)


def test_a_shares_interval_is_about_that_of_the_delta_method():
    dice = Random(2)
    pairs = [(0.6 * full + dice.gauss(0, 0.1), full) for full in (dice.uniform(0.5, 1.5) for _ in range(300))]
    found = share_of([pairs])
    share, bottom = found.mean, fmean(full for _, full in pairs)
    width = 1.96 * stdev(own - share * full for own, full in pairs) / sqrt(len(pairs)) / bottom
    assert found.low == pytest.approx(share - width, rel=0.02)
    assert found.high == pytest.approx(share + width, rel=0.02)


def test_without_values_there_is_no_interval():
    assert share_of([[(0.5, 0.0)] * 9]) is None
    assert share_of([[(0.5, 1.0)], []]) is None
    assert mean_of([]) is None


@pytest.mark.parametrize(("tasks", "is_infinite"), [([4], True), ([5], False), ([2, 2], False), ([9, 1], True)])
def test_too_few_prompts_have_an_infinite_interval(tasks: list[int], is_infinite: bool):
    found = mean_of([[1.0, 0.5, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0][:count] for count in tasks])
    assert (found.low == -inf and found.high == inf) == is_infinite
    assert found.is_noise == is_infinite


def test_a_decreasing_scale_swaps_the_ends():
    found = mean_of([[0.2, 0.3, 0.4, 0.5, 0.6]])
    scaled = found.through(lambda value: -10 * value)
    assert (scaled.mean, scaled.low, scaled.high) == (-10 * found.mean, -10 * found.high, -10 * found.low)
    assert mean_of([[0.2]]).through(lambda value: value**-1).high == inf
