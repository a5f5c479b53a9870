"""Metrics that are read when they are scraped: the engine's state and times, the queue and this process's tasks."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ringkv.base.histogram import Histogram
from ringkv.server.admission import Admission
from ringkv.server.channel import EngineChannel

HISTOGRAMS = {
    "queue": ("ringkv_queue_seconds", "Time from a request's submission until its prefill or its slot"),
    "prefill": ("ringkv_prefill_seconds", "Time of a prompt's prefill, with the decode steps in between"),
    "compress": ("ringkv_compress_seconds", "Time to select the entries of a prompt"),
    "step": ("ringkv_decode_step_seconds", "Time of a decode step of all slots"),
}


class EngineGauges(Collector):
    """The engine's state now."""

    def __init__(self, engine: EngineChannel) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats, limits = self._engine.stats(), self._engine.limits
        for name, help_, value in (
            ("ringkv_engine_up", "1 while the engine is running", int(self._engine.alive)),
            ("ringkv_requests_waiting", "Requests waiting for a slot or their grammar", stats.waiting),
            ("ringkv_requests_prefilling", "Requests in prefill", stats.prefilling),
            ("ringkv_requests_running", "Requests in decode", stats.running),
            ("ringkv_slots", "Maximum number of requests in decode", limits.slots),
            ("ringkv_slots_free", "Free slots", stats.free_slots),
            ("ringkv_staging_lanes", "Maximum number of prompts in staging", limits.lanes),
            ("ringkv_staging_lanes_free", "Free staging lanes", stats.free_lanes),
            (
                "ringkv_kv_held_bytes",
                "All cache memory: slots, staging, prefix store; fixed at start",
                limits.held_bytes,
            ),
        ):
            yield GaugeMetricFamily(name, help_, value)


class EngineTimes(Collector):
    """What the engine's process has measured."""

    def __init__(self, engine: EngineChannel) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        metrics = self._engine.metrics()
        for field, (name, help_) in HISTOGRAMS.items():
            histogram: Histogram = getattr(metrics, field)
            buckets = [(_bound(bound), count) for bound, count in histogram.cumulative()]
            yield HistogramMetricFamily(name, help_, buckets=buckets, sum_value=histogram.total)
        yield CounterMetricFamily(
            "ringkv_requests_not_finite", "Requests that failed on logits that were not finite", metrics.not_finite
        )


def _bound(bound: float) -> str:
    return "+Inf" if bound == inf else str(float(bound))


@dataclass(frozen=True)
class QueueGauges(Collector):
    """The queue as admission counts it, and the tasks of the event loop that renders the metrics."""

    admission: Admission

    def collect(self) -> Iterator[Metric]:
        admission = self.admission
        for name, help_, value in (
            ("ringkv_queue_requests", "Requests admitted and not finished, less the slots", admission.length),
            ("ringkv_queue_requests_limit", "The most that may wait (--max-queue)", admission.limits.requests),
            ("ringkv_queue_tokens", "Tokens of prompts without a first token", admission.tokens),
            ("ringkv_queue_tokens_limit", "The most that may wait (--max-queue-tokens)", admission.limits.tokens),
            ("ringkv_asyncio_tasks", "Tasks of the HTTP process", _tasks()),
        ):
            yield GaugeMetricFamily(name, help_, value)


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # rendered outside an event loop
        return 0
