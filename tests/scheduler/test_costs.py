"""Predicted times of work, on machines whose costs are known."""

from random import Random

import pytest

from ringkv.base.kv import Layout
from ringkv.base.workspace import Workspace
from ringkv.scheduler.costs import Costs, Work, chunk_work, review_work


def seconds(work: Work, speed: float = 1.0) -> float:
    """A machine's time for some work."""
    costs = 0.004, 3e-4, 2e-8, 1e-6, 8e-4, 1e-6, 5e-4
    return speed * sum(each * count for each, count in zip(costs, (1, *work), strict=True))


def works(count: int) -> list[Work]:
    random = Random(0)
    chunk = [chunk_work(start := random.randrange(0, 4000), start + random.randrange(0, 500)) for _ in range(count)]
    others = [
        Work(
            random.randint(1, 64), 0, random.randrange(20_000), random.randrange(3), scored=random.choice((0, 32, 200))
        )
        for _ in range(count)
    ]
    return [one + other for one, other in zip(chunk, others, strict=True)]


def trained(count: int, noise: float = 0.0, speed: float = 1.0, costs: Costs | None = None) -> Costs:
    costs, random = costs or Costs(), Random(1)
    for work in works(count):
        costs.observe(work, seconds(work, speed) * (1 + noise * random.random()))
    return costs


def test_a_chunks_work_counts_its_tokens_and_the_tokens_that_they_see():
    assert chunk_work(0, 4) == Work(rows=4, pairs=8)
    whole, parts = chunk_work(0, 700), chunk_work(0, 300) + chunk_work(300, 700)
    assert whole == parts


def test_nothing_is_predicted_before_anything_is_measured():
    assert Costs().predict(Work(rows=500)) == 0


def test_predictions_of_other_work_are_within_a_tenth():
    costs = trained(300)
    for work in works(400)[300:]:
        assert costs.predict(work) == pytest.approx(seconds(work), rel=0.1)


def test_with_scatter_nearly_all_measurements_are_below_the_prediction():
    costs, random = trained(1000, noise=0.3), Random(2)
    found = [seconds(work) * (1 + 0.3 * random.random()) <= costs.predict(work) for work in works(400)]
    assert sum(found) > 0.85 * len(found)
    assert all(costs.predict(work) < 1.6 * seconds(work) for work in works(400))


def test_predictions_follow_a_machine_that_gets_slower():
    costs = trained(1000, speed=2.0, costs=trained(300))
    assert all(costs.predict(work) > 1.6 * seconds(work) for work in works(50))


def test_one_disturbed_measurement_changes_little():
    costs, work = trained(300), Work(rows=100, pairs=5000)
    before = costs.predict(work)
    costs.observe(work, 50 * seconds(work))
    assert costs.predict(work) < 1.5 * before


def test_a_compacted_lane_costs_the_pairs_of_what_it_holds_and_its_compaction() -> None:
    bounded = Workspace(size=256, kept=192)
    assert chunk_work(0, 256, bounded) == chunk_work(0, 256)
    assert chunk_work(256 + 64 * 50, 256 + 64 * 51, bounded) == chunk_work(192, 256) + Work(ends=1, moved=256)
    assert chunk_work(256 + 64 * 50 + 32, 256 + 64 * 51, bounded) == chunk_work(224, 256)


def test_a_review_costs_an_end_and_the_pairs_of_the_newest_tokens_and_what_the_slot_holds() -> None:
    """A prompt of 30 in 40 entries leaves 10 before the slot is full; then 8 are evicted at once."""
    layout = Layout(30, 4, 22, 4, protected=30, base=30, ring=10, wraps=False, review=8)
    due = {seen: review_work(layout, seen) for seen in range(30, 60) if review_work(layout, seen) != Work()}
    found = {seen: (work.pairs, work.ends) for seen, work in due.items()}
    assert found == {32: (2 * 32, 1), 40: (8 * 40, 1), 48: (8 * 40, 1), 56: (8 * 40, 1)}


def test_a_reviews_pairs_are_divided_over_the_steps_at_which_its_layers_have_their_turns() -> None:
    """Five layers in 3 steps: the last two when the slot is due, two a token before, one two tokens before."""
    layout = Layout(30, 4, 22, 4, protected=30, base=30, ring=10, wraps=False, review=8, layers=5, steps=3)
    works = {seen: review_work(layout, seen) for seen in range(30, 50)}
    found = {seen: (work.pairs, work.ends) for seen, work in works.items() if work != Work()}
    assert found == {
        31: (1 * 31 * 2 // 5, 0),
        32: (2 * 32 * 2 // 5, 1),
        38: (8 * 38 * 1 // 5, 0),
        39: (8 * 39 * 2 // 5, 0),
        40: (8 * 40 * 2 // 5, 1),
        46: (8 * 38 * 1 // 5, 0),
        47: (8 * 39 * 2 // 5, 0),
        48: (8 * 40 * 2 // 5, 1),
    }
