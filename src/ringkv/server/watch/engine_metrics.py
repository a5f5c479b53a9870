"""Metrics that are read when they are scraped: engines' state and times, queues and this process's tasks."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ringkv.base.histogram import Histogram
from ringkv.server.run.serving import Serving

LABELS = ("model",)
STATE = {
    "ringkv_engine_up": "1 while the engine is running",
    "ringkv_requests_waiting": "Requests waiting for a slot or their grammar",
    "ringkv_requests_prefilling": "Requests in prefill",
    "ringkv_requests_running": "Requests in decode",
    "ringkv_slots": "Maximum number of requests in decode",
    "ringkv_slots_free": "Free slots",
    "ringkv_staging_lanes": "Maximum number of prompts in staging",
    "ringkv_staging_lanes_free": "Free staging lanes",
    "ringkv_kv_held_bytes": "All cache memory of the first rank: its slots, staging, prefix store; fixed at start",
    "ringkv_kv_slots_bytes": "The part of it that is in slots: those that the first rank has",
    "ringkv_queue_requests": "Requests admitted and not finished, less the slots",
    "ringkv_queue_requests_limit": "The most that may wait (--max-queue)",
    "ringkv_queue_tokens": "Tokens of prompts without a first token",
    "ringkv_queue_tokens_limit": "The most that may wait (--max-queue-tokens)",
}
PREFILL = {"ringkv_prefill_workers_connected": "Prefill workers that are connected; only of --role decode"}
HISTOGRAMS = {
    "queue": ("ringkv_queue_seconds", "Time from a request's submission until its prefill or its slot"),
    "prefill": ("ringkv_prefill_seconds", "Time of a prompt's prefill, with the decode steps in between"),
    "compress": ("ringkv_compress_seconds", "Time to select the entries of a prompt"),
    "step": ("ringkv_decode_step_seconds", "Time of a decode step of all slots"),
}  # fields of `EngineMetrics`
COUNTERS = {
    "ringkv_requests_not_finite": "Requests that failed on logits that were not finite",
    "ringkv_engine_restarts": "Engines started again after they ended",
    "ringkv_generated_tokens": "Tokens generated",
}


class EngineCollector(Collector):
    """The engines' state, what their processes have measured, and their queues as admission counts them."""

    def __init__(self, served: Iterable[Serving]) -> None:
        self._served = served

    def collect(self) -> Iterator[Metric]:
        served = {serving.names[0]: serving for serving in self._served}
        yield from families(GaugeMetricFamily, STATE, {model: _state(serving) for model, serving in served.items()})
        workers = {model: serving.engine.stats().prefill_workers for model, serving in served.items()}
        connected = {model: (count,) for model, count in workers.items() if count is not None}
        yield from families(GaugeMetricFamily, PREFILL, connected)
        ranks = GaugeMetricFamily("ringkv_kv_rank_bytes", "Cache memory of each rank", labels=["model", "rank"])
        for model, serving in served.items():
            for index, rank in enumerate(serving.engine.limits.rank_bytes):
                ranks.add_metric([model, str(index)], rank.held)
        yield ranks
        counts = {
            model: (serving.engine.metrics().not_finite, serving.engine.restarts, serving.metrics.times.tokens)
            for model, serving in served.items()
        }
        yield from families(CounterMetricFamily, COUNTERS, counts)
        for field, (name, help_) in HISTOGRAMS.items():
            yield histograms(
                name, help_, {model: getattr(each.engine.metrics(), field) for model, each in served.items()}
            )
        between = {model: serving.metrics.times.between() for model, serving in served.items()}
        yield histograms("ringkv_inter_token_seconds", "Time between two tokens of one answer", between)
        yield GaugeMetricFamily("ringkv_asyncio_tasks", "Tasks of the HTTP process", _tasks())


def _state(serving: Serving) -> Sequence[float]:
    """Return the values of `STATE`."""
    stats, limits, admission = serving.engine.stats(), serving.engine.limits, serving.admission
    return (
        int(serving.engine.alive),
        stats.waiting,
        stats.prefilling,
        stats.running,
        limits.slots,
        stats.free_slots,
        limits.lanes,
        stats.free_lanes,
        limits.held_bytes,
        limits.slots_bytes,
        admission.length,
        admission.limits.requests,
        admission.tokens,
        admission.limits.tokens,
    )


def histograms(name: str, help_: str, values: Mapping[str, Histogram]) -> Metric:
    """Return the metric of a histogram of each model."""
    family = HistogramMetricFamily(name, help_, labels=LABELS)
    for model, histogram in values.items():
        cumulative = histogram.cumulative()
        buckets = [(floatToGoString(bound), count) for bound, count in cumulative]  # type: ignore[no-untyped-call]
        family.add_metric([model], buckets, histogram.total)
    return family


def families(
    metric: type[GaugeMetricFamily | CounterMetricFamily],
    names: Mapping[str, str],
    values: Mapping[str, Sequence[float]],
) -> Iterator[Metric]:
    """Yield a metric for each name and help. values: by model, in the order of the names."""
    for index, (name, help_) in enumerate(names.items()):
        family = metric(name, help_, labels=LABELS)
        for model, numbers in values.items():
            family.add_metric([model], numbers[index])
        yield family


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # rendered outside an event loop
        return 0
