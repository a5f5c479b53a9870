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
