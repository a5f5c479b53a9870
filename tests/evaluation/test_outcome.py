"""Outcomes by the rule, and the number of prompts compared with intervals of that many."""

from math import inf
from random import Random

import pytest

from ringkv.evaluation.bootstrap import FEWEST, Interval, share_of
from ringkv.evaluation.outcome import EQUAL, WIDEST, outcome, prompts_needed, width


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (Interval(-66.7, -inf, inf), "few"),  # a large loss of three prompts is not noise
        (Interval(0.0, -inf, inf), "few"),
        (Interval(-10.0, -30.0, 10.0), "few"),
        (Interval(-3.0, -9.0, 3.0), "noise"),
        (Interval(-66.7, -95.0, -20.0), "worse"),  # wide, and certainly a loss
        (Interval(-3.0, -4.0, -2.0), "worse"),
        (Interval(4.0, 1.0, 7.0), "better"),
    ],
)
def test_an_interval_that_could_hide_a_loss_says_too_few_prompts(interval: Interval, expected: str) -> None:
    assert outcome(interval, 20) == expected
    swapped = {"worse": "better", "better": "worse"}
    assert outcome(interval, 20, more_is_better=False) == swapped.get(expected, expected)


def test_prompts_that_all_make_no_difference_show_none_once_a_large_one_would_have_shown() -> None:
    same = Interval(0.0, 0.0, 0.0)
    assert (outcome(same, EQUAL - 1), outcome(same, EQUAL)) == ("few", "noise")
    assert prompts_needed(8, same) == EQUAL
    missed = (1 - WIDEST / 100) ** EQUAL  # a loss of WIDEST points, seen in no prompt
    assert 0.02 < missed < 0.05
    assert outcome(Interval(-100.0, -100.0, -100.0), FEWEST) == "worse"


def test_as_many_prompts_as_are_needed_have_a_narrow_interval() -> None:
    dice = Random(5)

    def pairs(count: int) -> list[tuple[float, float]]:
        return [(float(dice.random() < 0.7), 1.0) for _ in range(count)]

    few = share_of([pairs(20)])
    assert few is not None
    share = few.through(lambda value: 100 * value)
    assert width(share) > WIDEST
    enough = share_of([pairs(prompts_needed(20, share))])
    assert enough is not None
    assert 100 * width(enough) == pytest.approx(WIDEST, rel=0.15)


def test_without_an_interval_the_widest_spread_is_expected() -> None:
    none = share_of([[(0.0, 1.0)] * (FEWEST - 1)])
    assert none is not None
    needed = prompts_needed(FEWEST - 1, none)
    halves = share_of([[(float(place % 2), 1.0) for place in range(needed)]])
    assert halves is not None
    assert 100 * width(halves) == pytest.approx(WIDEST, rel=0.1)
