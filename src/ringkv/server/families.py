"""Prometheus families of values that are read when they are scraped."""

from math import inf

from prometheus_client.core import HistogramMetricFamily

from ringkv.base.histogram import Histogram

LABELS = ("model",)


def add_histogram(family: HistogramMetricFamily, model: str, histogram: Histogram) -> None:
    """Add a model's histogram to a family, in place."""
    buckets = [(_bound(bound), count) for bound, count in histogram.cumulative()]
    family.add_metric([model], buckets, histogram.total)


def _bound(bound: float) -> str:
    return "+Inf" if bound == inf else str(float(bound))
