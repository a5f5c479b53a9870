"""Prometheus metrics of `/metrics`; each app has its own registry."""

from collections.abc import Iterator
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ringkv.base.events import Usage
from ringkv.server.channel import EngineChannel

FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
INTER_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    def __init__(self, engine: EngineChannel) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(_EngineGauges(engine))
        self._requests = Counter("ringkv_requests", "HTTP requests answered", ["endpoint", "status"], registry=registry)
        self._prompt = Counter("ringkv_prompt_tokens", "Prompt tokens sent to the engine", registry=registry)
        self._generated = Counter("ringkv_generated_tokens", "Tokens generated", registry=registry)
        self._first = Histogram(
            "ringkv_time_to_first_token_seconds",
            "Time from the request's arrival to its first token",
            buckets=FIRST_TOKEN_SECONDS,
            registry=registry,
        )
        self._between = Histogram(
            "ringkv_inter_token_seconds",
            "Time between two tokens of one answer",
            buckets=INTER_TOKEN_SECONDS,
            registry=registry,
        )
        self._kept = Counter("ringkv_kv_kept_tokens", "Prompt tokens kept at the end of prefill", registry=registry)
        self._cached = Counter("ringkv_cached_tokens", "Prompt tokens that needed no prefill", registry=registry)
        self._evicted = Counter("ringkv_kv_evicted_tokens", "Tokens evicted from the cache", registry=registry)
        self._drafted = Counter("ringkv_drafted_tokens", "Tokens guessed ahead (--speculate)", registry=registry)
        self._accepted = Counter("ringkv_accepted_tokens", "Drafted tokens that were accepted", registry=registry)
        self._wraps = Counter("ringkv_kv_ring_wraps", "Times that decoding wrapped a ring", registry=registry)

    def answered(self, endpoint: str, status: int) -> None:
        self._requests.labels(endpoint, str(status)).inc()

    def meter(self, started: float, is_first: bool) -> "Meter":
        return Meter(self, started, is_first)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def submitted(self, prompt_tokens: int) -> None:
        self._prompt.inc(prompt_tokens)

    def first_token(self, seconds: float) -> None:
        self._generated.inc()
        self._first.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._generated.inc()
        self._between.observe(seconds)

    def cached(self, cached_tokens: int) -> None:
        self._cached.inc(cached_tokens)

    def finished(self, usage: Usage) -> None:
        self._kept.inc(usage.kv.kept)
        self._evicted.inc(usage.kv.evicted)
        self._wraps.inc(usage.kv.ring_wraps)
        self._drafted.inc(usage.drafted_tokens)
        self._accepted.inc(usage.accepted_tokens)


class Meter:
    """Measures one answer's token times. started: `perf_counter` when its request arrived.

    is_first: the answer is the first of its prompt; the prompt's cached tokens are counted once, with this answer.
    """

    def __init__(self, metrics: Metrics, started: float, is_first: bool) -> None:
        self._metrics = metrics
        self._started, self._is_first = started, is_first
        self._last: float | None = None

    def token(self) -> None:
        now = perf_counter()
        if self._last is None:
            self._metrics.first_token(now - self._started)
        else:
            self._metrics.next_token(now - self._last)
        self._last = now

    def finished(self, usage: Usage) -> None:
        self._metrics.finished(usage)
        if self._is_first:
            self._metrics.cached(usage.cached_tokens)


class _EngineGauges(Collector):
    """Gauges that are read only when they are scraped."""

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
            (
                "ringkv_kv_held_bytes",
                "All cache memory: slots, staging, prefix store; fixed at start",
                limits.held_bytes,
            ),
        ):
            yield GaugeMetricFamily(name, help_, value)
