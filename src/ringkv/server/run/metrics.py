"""Prometheus metrics of `/metrics`; each app has its own registry. `engine_metrics` has those of the engine."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from ringkv.base.events import Usage
from ringkv.server.protocol.errors import NOT_ANSWERED
from ringkv.server.run.token_times import SECONDS, TokenCollector, TokenTimes

GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
NOT_BY_STATUS = "rate_limit_exceeded"  # the one reason of rejections that is not a 503
RECENT = 4096  # observations of a model that are kept until its history takes them
FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)

COUNTERS = {
    "prompt_tokens": "Prompt tokens sent to the engine",
    "requests_cancelled": "Requests whose client disconnected before their end",
    "kv_kept_tokens": "Prompt tokens kept at the end of prefill",
    "cached_tokens": "Prompt tokens that needed no prefill",
    "kv_evicted_tokens": "Tokens evicted from the cache",
    "drafted_tokens": "Tokens guessed ahead (--speculate)",
    "accepted_tokens": "Drafted tokens that were accepted",
    "kv_ring_wraps": "Times that decoding wrapped a ring",
    "kv_pages_read": "Pages that steps read, per layer and key-value head",
    "kv_pages_recalled": "Pages that steps fetched from a tier, per layer and key-value head",
    "kv_pages_skipped": "Pages that steps did not read, per layer and key-value head",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": ("Time from the request's arrival to its first token", FIRST_TOKEN_SECONDS),
    "time_per_output_token_seconds": (
        "Time from an answer's first token to its last, divided by the tokens after the first",
        SECONDS,
    ),
}


class Metrics:
    """A server's metrics. `of` gives those of one model, which have the label `model`."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter("ringkv_requests", "HTTP requests answered", ["endpoint", "status"], registry=registry)
        self._rejected = Counter(
            "ringkv_requests_rejected", "Calls refused because of load, by reason", ["reason"], registry=registry
        )
        self._counters = {
            name: Counter(f"ringkv_{name}", help_, ["model"], registry=registry) for name, help_ in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"ringkv_{name}", help_, ["model"], buckets=buckets, registry=registry)
            for name, (help_, buckets) in HISTOGRAMS.items()
        }
        self._times: dict[str, TokenTimes] = {}
        registry.register(TokenCollector(self._times))

    def answered(self, endpoint: str, status: int) -> None:
        self._requests.labels(endpoint, str(status)).inc()

    def rejected(self, reason: str) -> None:
        """Count a call that was refused because of load, not because of what it is."""
        self._rejected.labels(reason).inc()

    @property
    def requests(self) -> int:
        """Requests to generate that were answered, with any status."""
        return sum(self._answered(lambda status: True))

    @property
    def errors(self) -> int:
        """Those that the server failed to answer, without those that it refused because of load."""
        refused = sum(count for reason, count in self._rejections() if reason != NOT_BY_STATUS)
        return max(0, sum(self._answered(lambda status: status >= 500)) - refused)

    @property
    def invalid(self) -> int:
        """Those that the server refused because of what they are: status 4xx, without those above a rate limit."""
        above_rate = sum(count for reason, count in self._rejections() if reason == NOT_BY_STATUS)
        refused = sum(self._answered(lambda status: 400 <= status < 500 and status != NOT_ANSWERED))
        return max(0, refused - above_rate)

    @property
    def rejections(self) -> int:
        """Calls refused because of load."""
        return sum(count for _, count in self._rejections())

    def _answered(self, matches: Callable[[int], bool]) -> Iterator[int]:
        for labels, count in _samples(self._requests):
            if labels["endpoint"] in GENERATING and matches(int(labels["status"])):
                yield count

    def _rejections(self) -> Iterator[tuple[str, int]]:
        for labels, count in _samples(self._rejected):
            yield labels["reason"], count

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def of(self, model: str) -> "ModelMetrics":
        bound = {name: metric.labels(model) for name, metric in (self._counters | self._histograms).items()}
        return ModelMetrics(self, bound, self._times.setdefault(model, TokenTimes()))


def _samples(counter: Counter) -> Iterator[tuple[Mapping[str, str], int]]:
    """Yield the labels and the value of each child of a counter, or of one child without labels."""
    for metric in counter.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                yield sample.labels, int(sample.value)


class ModelMetrics:
    """The metrics of one model's requests. bound: children of the server's counters and histograms, by name."""

    def __init__(self, server: Metrics, bound: Mapping[str, Any], times: TokenTimes) -> None:
        self.server, self._bound, self.times = server, bound, times
        self._recent: dict[str, deque[float]] = {name: deque(maxlen=RECENT) for name in HISTOGRAMS}

    def count(self, name: str) -> int:
        """Return the value of one of `COUNTERS`."""
        return next(count for _, count in _samples(self._bound[name]))

    def taken(self, name: str) -> list[float]:
        """Return what one of `HISTOGRAMS` has observed since the last call, the newest `RECENT` at most."""
        found = list(self._recent[name])
        self._recent[name].clear()
        return found

    def meter(self, started: float, is_first: bool) -> "Meter":
        return Meter(self, started, is_first)

    def submitted(self, prompt_tokens: int) -> None:
        self._bound["prompt_tokens"].inc(prompt_tokens)

    def first_token(self, seconds: float) -> None:
        self.times.first()
        self._observe("time_to_first_token_seconds", seconds)

    def answer_done(self, seconds_per_token: float) -> None:
        self._observe("time_per_output_token_seconds", seconds_per_token)

    def _observe(self, name: str, seconds: float) -> None:
        self._bound[name].observe(seconds)
        self._recent[name].append(seconds)

    def cancelled(self, requests: int) -> None:
        self._bound["requests_cancelled"].inc(requests)

    def cached(self, cached_tokens: int) -> None:
        self._bound["cached_tokens"].inc(cached_tokens)

    def finished(self, usage: Usage) -> None:
        self._bound["kv_kept_tokens"].inc(usage.kv.kept)
        self._bound["kv_evicted_tokens"].inc(usage.kv.evicted)
        self._bound["kv_ring_wraps"].inc(usage.kv.ring_wraps)
        if pages := usage.kv.pages:
            for name in ("read", "recalled", "skipped"):
                self._bound[f"kv_pages_{name}"].inc(getattr(pages, name))
        self._bound["drafted_tokens"].inc(usage.drafted_tokens)
        self._bound["accepted_tokens"].inc(usage.accepted_tokens)


class Meter:
    """Measures one answer's token times. started: `perf_counter` when its request arrived.

    is_first: the answer is the first of its prompt; the prompt's cached tokens are counted once, with this answer.
    """

    def __init__(self, metrics: ModelMetrics, started: float, is_first: bool) -> None:
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
            self._metrics.times.next(now - self._last)
        self._last = now
        self._count += 1

    def finished(self, usage: Usage) -> None:
        self._metrics.finished(usage)
        if self._first is not None and self._last is not None and self._count > 1:
            self._metrics.answer_done((self._last - self._first) / (self._count - 1))
        if self._is_first:
            self._metrics.cached(usage.cached_tokens)
