"""Prometheus metrics of `/metrics`; each app has its own registry. `engine_metrics` has those of the engine."""

from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from ringkv.base.events import Usage

FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
INTER_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
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
        self._per_token = Histogram(
            "ringkv_time_per_output_token_seconds",
            "Time from an answer's first token to its last, divided by the tokens after the first",
            buckets=INTER_TOKEN_SECONDS,
            registry=registry,
        )
        self._rejected = Counter(
            "ringkv_requests_rejected", "Calls refused because of load, by reason", ["reason"], registry=registry
        )
        self._cancelled = Counter(
            "ringkv_requests_cancelled", "Requests whose client disconnected before their end", registry=registry
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

    def answer_done(self, seconds_per_token: float) -> None:
        self._per_token.observe(seconds_per_token)

    def rejected(self, reason: str) -> None:
        """Count a call that was refused because of load, not because of what it is."""
        self._rejected.labels(reason).inc()

    def cancelled(self, requests: int) -> None:
        self._cancelled.inc(requests)

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
        self._first: float | None = None
        self._last: float | None = None
        self._count = 0

    def token(self) -> None:
        now = perf_counter()
        if self._last is None:
            self._first = now
            self._metrics.first_token(now - self._started)
        else:
            self._metrics.next_token(now - self._last)
        self._last = now
        self._count += 1

    def finished(self, usage: Usage) -> None:
        self._metrics.finished(usage)
        if self._first is not None and self._last is not None and self._count > 1:
            self._metrics.answer_done((self._last - self._first) / (self._count - 1))
        if self._is_first:
            self._metrics.cached(usage.cached_tokens)
