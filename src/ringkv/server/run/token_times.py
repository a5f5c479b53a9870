"""TokenTimes: the tokens of a model's answers and the times between them.

Histograms of prometheus_client take a lock and a loop for each observation, which is too much for every token.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from math import inf

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ringkv.base.histogram import Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class TokenTimes:
    """Used in one event loop."""

    def __init__(self) -> None:
        self.tokens = 0
        self._counts = [0] * (len(SECONDS) + 1)
        self._total = 0.0

    def first(self) -> None:
        """Count the first token of an answer."""
        self.tokens += 1

    def next(self, seconds: float) -> None:
        """Count a token that came so long after the one before."""
        self.tokens += 1
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._total += seconds

    def between(self) -> Histogram:
        """Return the times between two tokens of one answer."""
        return Histogram(SECONDS, tuple(self._counts), self._total)


class TokenCollector(Collector):
    """times: by model."""

    def __init__(self, times: Mapping[str, TokenTimes]) -> None:
        self._times = times

    def collect(self) -> Iterator[Metric]:
        tokens = CounterMetricFamily("ringkv_generated_tokens", "Tokens generated", labels=LABELS)
        between = HistogramMetricFamily(
            "ringkv_inter_token_seconds", "Time between two tokens of one answer", labels=LABELS
        )
        for model, times in self._times.items():
            tokens.add_metric([model], times.tokens)
            add_histogram(between, model, times.between())
        yield tokens
        yield between


LABELS = ("model",)


def add_histogram(family: HistogramMetricFamily, model: str, histogram: Histogram) -> None:
    """Add a model's histogram to a family, in place."""
    buckets = [(_bound(bound), count) for bound, count in histogram.cumulative()]
    family.add_metric([model], buckets, histogram.total)


def _bound(bound: float) -> str:
    return "+Inf" if bound == inf else str(float(bound))
