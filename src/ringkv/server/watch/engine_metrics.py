"""Metrics that are read when they are scraped: engines' state and times, queues and this process's tasks."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ringkv.server.run.admission import Admission
from ringkv.server.run.channel import EngineChannel
from ringkv.server.run.token_times import LABELS, add_histogram

HISTOGRAMS = {
    "queue": ("ringkv_queue_seconds", "Time from a request's submission until its prefill or its slot"),
    "prefill": ("ringkv_prefill_seconds", "Time of a prompt's prefill, with the decode steps in between"),
    "compress": ("ringkv_compress_seconds", "Time to select the entries of a prompt"),
    "step": ("ringkv_decode_step_seconds", "Time of a decode step of all slots"),
}


class EngineGauges(Collector):
    """Each engine's state now. engines: by model."""

    def __init__(self, engines: Mapping[str, EngineChannel]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        return gauges({model: _state(engine) for model, engine in self._engines.items()}, STATE)


def _state(engine: EngineChannel) -> Sequence[float]:
    """Return the values of `STATE`."""
    stats, limits = engine.stats(), engine.limits
    return (
        int(engine.alive),
        stats.waiting,
        stats.prefilling,
        stats.running,
        limits.slots,
        stats.free_slots,
        limits.lanes,
        stats.free_lanes,
        limits.held_bytes,
        limits.slots_bytes,
    )


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
}


class RankGauge(Collector):
    """The cache memory of each rank, of engines that have several. engines: by model."""

    def __init__(self, engines: Mapping[str, EngineChannel]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        found = GaugeMetricFamily("ringkv_kv_rank_bytes", "Cache memory of each rank", labels=["model", "rank"])
        for model, engine in self._engines.items():
            for index, rank in enumerate(engine.limits.rank_bytes):
                found.add_metric([model, str(index)], rank.held)
        yield found


class PrefillGauge(Collector):
    """The connected prefill workers of engines that have some. engines: by model."""

    def __init__(self, engines: Mapping[str, EngineChannel]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        connected = {model: engine.stats().prefill_workers for model, engine in self._engines.items()}
        return gauges({model: (count,) for model, count in connected.items() if count is not None}, PREFILL)


PREFILL = {"ringkv_prefill_workers_connected": "Prefill workers that are connected; only of --role decode"}


class EngineTimes(Collector):
    """What the engines' processes have measured. engines: by model."""

    def __init__(self, engines: Mapping[str, EngineChannel]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        measured = {model: engine.metrics() for model, engine in self._engines.items()}
        for field, (name, help_) in HISTOGRAMS.items():
            family = HistogramMetricFamily(name, help_, labels=LABELS)
            for model, metrics in measured.items():
                add_histogram(family, model, getattr(metrics, field))
            yield family
        not_finite = CounterMetricFamily(
            "ringkv_requests_not_finite", "Requests that failed on logits that were not finite", labels=LABELS
        )
        for model, metrics in measured.items():
            not_finite.add_metric([model], metrics.not_finite)
        yield not_finite
        restarts = CounterMetricFamily(
            "ringkv_engine_restarts", "Engines started again after they ended", labels=LABELS
        )
        for model, engine in self._engines.items():
            restarts.add_metric([model], engine.restarts)
        yield restarts


class QueueGauges(Collector):
    """The queues as admission counts them. admissions: by model."""

    def __init__(self, admissions: Mapping[str, Admission]) -> None:
        self._admissions = admissions

    def collect(self) -> Iterator[Metric]:
        return gauges({model: _queue(admission) for model, admission in self._admissions.items()}, QUEUE)


def _queue(admission: Admission) -> Sequence[float]:
    """Return the values of `QUEUE`."""
    return admission.length, admission.limits.requests, admission.tokens, admission.limits.tokens


QUEUE = {
    "ringkv_queue_requests": "Requests admitted and not finished, less the slots",
    "ringkv_queue_requests_limit": "The most that may wait (--max-queue)",
    "ringkv_queue_tokens": "Tokens of prompts without a first token",
    "ringkv_queue_tokens_limit": "The most that may wait (--max-queue-tokens)",
}


class TaskGauge(Collector):
    """The tasks of the event loop that renders the metrics."""

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("ringkv_asyncio_tasks", "Tasks of the HTTP process", _tasks())


def gauges(values: Mapping[str, Sequence[float]], families: Mapping[str, str]) -> Iterator[Metric]:
    """Yield a gauge for each name and help in `families`. values: by model, in the order of `families`."""
    for place, (name, help_) in enumerate(families.items()):
        family = GaugeMetricFamily(name, help_, labels=LABELS)
        for model, found in values.items():
            family.add_metric([model], found[place])
        yield family


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # rendered outside an event loop
        return 0
