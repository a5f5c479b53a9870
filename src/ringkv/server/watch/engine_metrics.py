"""Metrics that are read when they are scraped: engines' state and times, queues and this process's tasks."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ringkv.base.histogram import Histogram
from ringkv.server.run.serving import Serving

LABELS = ("model",)
Table = Mapping[str, tuple[str, Callable[[Serving], float | None]]]
"""By name, a metric's help, and what its value is; None if a model has none."""
STATE: Table = {
    "ringkv_engine_up": ("1 while the engine is running", lambda each: each.engine.alive),
    "ringkv_requests_waiting": (
        "Requests waiting for a slot or their grammar",
        lambda each: each.engine.stats().waiting,
    ),
    "ringkv_requests_prefilling": ("Requests in prefill", lambda each: each.engine.stats().prefilling),
    "ringkv_requests_running": ("Requests in decode", lambda each: each.engine.stats().running),
    "ringkv_slots": ("Maximum number of requests in decode", lambda each: each.engine.limits.slots),
    "ringkv_slots_free": ("Free slots", lambda each: each.engine.stats().free_slots),
    "ringkv_staging_lanes": ("Maximum number of prompts in staging", lambda each: each.engine.limits.lanes),
    "ringkv_staging_lanes_free": ("Free staging lanes", lambda each: each.engine.stats().free_lanes),
    "ringkv_kv_held_bytes": (
        "All cache memory of the first rank: its slots, staging, prefix store; fixed at start",
        lambda each: each.engine.limits.held_bytes,
    ),
    "ringkv_kv_slots_bytes": (
        "The part of it that is in slots: those that the first rank has",
        lambda each: each.engine.limits.slots_bytes,
    ),
    "ringkv_queue_requests": ("Requests admitted and not finished, less the slots", lambda each: each.admission.length),
    "ringkv_queue_requests_limit": (
        "The most that may wait (--max-queue)",
        lambda each: each.admission.limits.requests,
    ),
    "ringkv_queue_tokens": ("Tokens of prompts without a first token", lambda each: each.admission.tokens),
    "ringkv_queue_tokens_limit": (
        "The most that may wait (--max-queue-tokens)",
        lambda each: each.admission.limits.tokens,
    ),
    "ringkv_prefill_workers_connected": (
        "Prefill workers that are connected; only of --role decode",
        lambda each: each.engine.stats().prefill_workers,
    ),
}
COUNTERS: Table = {
    "ringkv_requests_not_finite": (
        "Requests that failed on logits that were not finite",
        lambda each: each.engine.metrics().not_finite,
    ),
    "ringkv_engine_restarts": ("Engines started again after they ended", lambda each: each.engine.restarts),
    "ringkv_generated_tokens": ("Tokens generated", lambda each: each.metrics.times.tokens),
}
HISTOGRAMS = {
    "queue": ("ringkv_queue_seconds", "Time from a request's submission until its prefill or its slot"),
    "prefill": ("ringkv_prefill_seconds", "Time of a prompt's prefill, with the decode steps in between"),
    "compress": ("ringkv_compress_seconds", "Time to select the entries of a prompt"),
    "step": ("ringkv_decode_step_seconds", "Time of a decode step of all slots"),
}  # fields of `EngineMetrics`


class EngineCollector(Collector):
    """The engines' state, what their processes have measured, and their queues as admission counts them."""

    def __init__(self, served: Iterable[Serving]) -> None:
        self._served = served

    def collect(self) -> Iterator[Metric]:
        served = {serving.names[0]: serving for serving in self._served}
        yield from families(GaugeMetricFamily, STATE, served)
        ranks = GaugeMetricFamily("ringkv_kv_rank_bytes", "Cache memory of each rank", labels=["model", "rank"])
        for model, serving in served.items():
            for index, rank in enumerate(serving.engine.limits.rank_bytes):
                ranks.add_metric([model, str(index)], rank.held)
        yield ranks
        yield from families(CounterMetricFamily, COUNTERS, served)
        for field, (name, help_) in HISTOGRAMS.items():
            yield histograms(
                name, help_, {model: getattr(each.engine.metrics(), field) for model, each in served.items()}
            )
        between = {model: serving.metrics.times.between() for model, serving in served.items()}
        yield histograms("ringkv_inter_token_seconds", "Time between two tokens of one answer", between)
        yield GaugeMetricFamily("ringkv_asyncio_tasks", "Tasks of the HTTP process", _tasks())


def histograms(name: str, help_: str, values: Mapping[str, Histogram]) -> Metric:
    """Return the metric of a histogram of each model."""
    family = HistogramMetricFamily(name, help_, labels=LABELS)
    for model, histogram in values.items():
        cumulative = histogram.cumulative()
        buckets = [(floatToGoString(bound), count) for bound, count in cumulative]  # type: ignore[no-untyped-call]
        family.add_metric([model], buckets, histogram.total)
    return family


def families(
    metric: type[GaugeMetricFamily | CounterMetricFamily], table: Table, served: Mapping[str, Serving]
) -> Iterator[Metric]:
    """Yield the metrics of a table for these models, by their own names."""
    for name, (help_, read) in table.items():
        family = metric(name, help_, labels=LABELS)
        for model, serving in served.items():
            if (value := read(serving)) is not None:
                family.add_metric([model], value)
        yield family


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # rendered outside an event loop
        return 0
