"""Prometheus metrics of `/metrics`; each app has its own registry. `engine_metrics` has those read when scraped."""

import collections
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from ringkv.base import histogram
from ringkv.base.events import Usage
from ringkv.server.protocol.errors import NOT_ANSWERED

GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
NOT_BY_STATUS = "rate_limit_exceeded"  # the only reason of rejections that is not a 503
RECENT = 4096  # observations of a model that are kept until its history takes them
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)

COUNTERS = {
    "prompt_tokens": "Prompt tokens sent to the engine",
    "requests_cancelled": "Requests whose client disconnected before their end",
    "kv_kept_tokens": "Prompt tokens kept at the end of prefill",
    "cached_tokens": "Prompt tokens that needed no prefill",
    "kv_evicted_tokens": "Tokens evicted from the cache",
    "drafted_tokens": "Tokens guessed ahead (--speculate, --speculative-config)",
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
        TOKEN_SECONDS,
    ),
}


class Metrics:
    """A server's metrics. `of` gives those of one model, which have the label `model`."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._totals = collections.Counter[str]()
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

    def answered(self, endpoint: str, status: int) -> None:
        self._requests.labels(endpoint, str(status)).inc()
        if endpoint in GENERATING:
            is_invalid = 400 <= status < 500 and status != NOT_ANSWERED
            self._totals.update(requests=1, invalid=is_invalid, failed=status >= 500)

    def rejected(self, reason: str) -> None:
        """Count a call that was refused because of load, not because of what it is."""
        self._rejected.labels(reason).inc()
        self._totals.update(rejected=1, above_rate=reason == NOT_BY_STATUS)

    def totals(self) -> dict[str, int]:
        """Return how many requests to generate were answered with any status, and three kinds of them.

        invalid: refused because of what they are: status 4xx, without those above a rate limit. rejected: refused
        because of load. errors: those that the server failed to answer.
        """
        total = self._totals
        return {
            "requests": total["requests"],
            "invalid": max(0, total["invalid"] - total["above_rate"]),
            "rejected": total["rejected"],
            "errors": max(0, total["failed"] - (total["rejected"] - total["above_rate"])),
        }

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def of(self, model: str) -> "ModelMetrics":
        return ModelMetrics(
            self, {name: metric.labels(model) for name, metric in (self._counters | self._histograms).items()}
        )


class TokenTimes:
    """The tokens of a model's answers and the times between them. Used in one event loop.

    Histograms of prometheus_client take a lock and a loop for each observation, which is too much for every token.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._counts = [0] * (len(TOKEN_SECONDS) + 1)
        self._total = 0.0

    def add(self, seconds: float | None) -> None:
        """Count a token that came so long after the token before; None for the first token of an answer."""
        self.tokens += 1
        if seconds is not None:
            self._counts[bisect_left(TOKEN_SECONDS, seconds)] += 1
            self._total += seconds

    def between(self) -> histogram.Histogram:
        """Return the times between two tokens of one answer."""
        return histogram.Histogram(TOKEN_SECONDS, tuple(self._counts), self._total)


class ModelMetrics:
    """The metrics of one model's requests. children: of the server's counters and histograms, by name."""

    def __init__(self, server: Metrics, children: Mapping[str, Any]) -> None:
        self.server, self.times = server, TokenTimes()
        self._children, self._counts = children, dict.fromkeys(COUNTERS, 0.0)
        self._recent: dict[str, deque[float]] = {name: deque(maxlen=RECENT) for name in HISTOGRAMS}

    def count(self, name: str) -> int:
        """Return the value of a counter in `COUNTERS`."""
        return int(self._counts[name])

    def add(self, name: str, count: float) -> None:
        """Add to a counter in `COUNTERS`."""
        self._children[name].inc(count)
        self._counts[name] += count

    def observe(self, name: str, seconds: float) -> None:
        """Add to a histogram in `HISTOGRAMS`."""
        self._children[name].observe(seconds)
        self._recent[name].append(seconds)

    def taken(self, name: str) -> list[float]:
        """Return what a histogram in `HISTOGRAMS` has observed since the last call, the newest `RECENT` at most."""
        recent = list(self._recent[name])
        self._recent[name].clear()
        return recent

    def finished(self, usage: Usage) -> None:
        self.add("kv_kept_tokens", usage.kv.kept)
        self.add("kv_evicted_tokens", usage.kv.evicted)
        self.add("kv_ring_wraps", usage.kv.ring_wraps)
        if pages := usage.kv.pages:
            for name in ("read", "recalled", "skipped"):
                self.add(f"kv_pages_{name}", getattr(pages, name))
        self.add("drafted_tokens", usage.drafted_tokens)
        self.add("accepted_tokens", usage.accepted_tokens)


class Meter:
    """Measures one answer's token times. started: `perf_counter` when its request arrived.

    is_first: the answer is the first of its prompt; the prompt's cached tokens are counted once, with this answer.
    """

    def __init__(self, metrics: ModelMetrics, started: float, is_first: bool) -> None:
        self._metrics = metrics
        self._started, self._is_first = started, is_first
        self._first = self._last = 0.0
        self._count = 0

    def token(self) -> None:
        now = perf_counter()
        if not self._count:
            self._first = now
            self._metrics.observe("time_to_first_token_seconds", now - self._started)
        self._metrics.times.add(now - self._last if self._count else None)
        self._last = now
        self._count += 1

    def finished(self, usage: Usage) -> None:
        self._metrics.finished(usage)
        if self._count > 1:
            seconds = (self._last - self._first) / (self._count - 1)
            self._metrics.observe("time_per_output_token_seconds", seconds)
        if self._is_first:
            self._metrics.add("cached_tokens", usage.cached_tokens)
