"""Means and intervals compared with values worked out another way."""

from math import exp
from random import Random
from statistics import fmean, stdev

import pytest

from ringkv.evaluation.journal import Record
from ringkv.evaluation.summary import group_scores, task_scores


def record(task: str, sample: int, cell: str, score: float | None, **more) -> Record:
    return Record(task, "inside", str(sample), cell, score, prompt_tokens=100, **({"kept": 25} | more))


def pairs(task: str, scores: dict[str, list[float]]) -> list[Record]:
    return [record(task, place, cell, score) for cell, all_ in scores.items() for place, score in enumerate(all_)]


def test_a_difference_is_over_the_same_prompts():
    records = pairs("vt", {"full": [1, 1, 0, 0], "snapstream 4x": [1, 0, 0, 0]})
    full, ours = task_scores(records)
    assert (full.mean, full.over_full, full.count) == (50, None, 4)
    assert (ours.mean, ours.over_full.mean, ours.kept) == (25, -25, 0.25)


def test_an_interval_is_about_that_of_the_normal_distribution():
    dice = Random(1)
    lost = [dice.gauss(0.3, 0.1) for _ in range(200)]
    records = pairs("vt", {"full": [1.0] * 200, "x 4x": [1 - one for one in lost]})
    over = task_scores(records)[1].over_full
    width = 1.96 * stdev(lost) / 200**0.5
    assert over.mean == pytest.approx(-100 * fmean(lost))
    assert over.low == pytest.approx(-100 * (fmean(lost) + width), abs=0.3)
    assert over.high == pytest.approx(-100 * (fmean(lost) - width), abs=0.3)
    assert not over.is_noise


def test_equal_gains_and_losses_are_noise():
    records = pairs("vt", {"full": [0, 1] * 10, "x 4x": [1, 0] * 10})
    assert task_scores(records)[1].over_full.is_noise


@pytest.mark.parametrize("count", [1, 4])
def test_a_difference_over_few_equal_prompts_is_noise(count: int):
    over = task_scores(pairs("vt", {"full": [1] * count, "x 4x": [0] * count}))[1].over_full
    assert (over.mean, over.is_noise) == (-100, True)


def test_an_answer_that_failed_is_counted_and_not_scored():
    records = [*pairs("vt", {"full": [1, 1], "x 8x": [1]}), record("vt", 1, "x 8x", None, error="too small")]
    ours = task_scores(records)[1]
    assert (ours.mean, ours.count, ours.failed, ours.over_full.mean) == (100, 1, 1, 0)


def test_perplexities_are_compared_as_ratios():
    records = pairs("wikitext", {"full": [-2.0, -3.0], "x 4x": [-2.1, -3.1]})
    full, ours = task_scores(records)
    assert full.mean == pytest.approx(exp(2.5))
    assert ours.over_full.mean == pytest.approx(100 * (exp(0.1) - 1))


def test_each_task_has_the_same_weight_in_a_groups_mean():
    records = pairs("vt", {"full": [1] * 9, "x 4x": [0] * 9}) + pairs("cwe", {"full": [1], "x 4x": [1]})
    full, ours = group_scores(records)
    assert (full.mean, ours.mean, ours.over_full.mean, ours.count) == (100, 50, -50, 10)
    assert ours.task == "ruler, mean of 2 tasks"
