from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from ringkv.base.histogram import Histogram

BOUNDS = (0.5, 1.0, 2.0)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])))
def test_each_bound_counts_the_observations_that_are_at_most_as_large(values: list[float]) -> None:
    histogram = Histogram.of(BOUNDS)
    for value in values:
        histogram = histogram.plus(value)
    ordered = sorted(values)
    assert list(histogram.cumulative()) == [(bound, bisect_right(ordered, bound)) for bound in (*BOUNDS, float("inf"))]
    assert (histogram.count, histogram.total) == (len(values), sum(values))


@given(st.lists(st.floats(0, 3), min_size=1), st.sampled_from([0.25, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_where_evenly_spread_observations_reach_its_rank(values: list[float], share: float) -> None:
    histogram = Histogram.of(BOUNDS)
    for value in values:
        histogram = histogram.plus(value)
    found = histogram.quantile(share)
    assert found is not None
    # The other way round: how many observations are at most `found`, counted from the buckets.
    edges = (0.0, *BOUNDS)
    below = sum(
        count * min(1.0, max(0.0, (found - low) / (high - low)))
        for count, low, high in zip(histogram.counts[:-1], edges[:-1], BOUNDS, strict=True)
    )
    if found == BOUNDS[-1]:
        assert share * len(values) >= below - 1e-6
    else:
        assert abs(below - share * len(values)) < 1e-6


def test_a_quantile_of_nothing_is_none() -> None:
    assert Histogram.of(BOUNDS).quantile(0.5) is None


@given(st.lists(st.floats(0, 3)), st.lists(st.floats(0, 3)))
def test_what_came_since_is_what_was_added(before: list[float], after: list[float]) -> None:
    earlier = later = only = Histogram.of(BOUNDS)
    for value in before:
        earlier = later = earlier.plus(value)
    for value in after:
        later, only = later.plus(value), only.plus(value)
    assert later.since(earlier).counts == only.counts
    assert abs(later.since(earlier).total - only.total) < 1e-9
    if any(earlier.counts):
        assert only.since(later) == (only if only.counts != later.counts else only.since(only))
