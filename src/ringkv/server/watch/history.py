"""Histories: what a server did in each interval of the last hour, from its own metrics."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from math import ceil

from ringkv.base.histogram import Histogram
from ringkv.server.run.answer import JSON
from ringkv.server.run.serving import Serving

INTERVAL = 5.0  # seconds
POINTS = 720  # an hour
SHOWN = (0.5, 0.95, 0.99)  # quantiles of requests
OF_STEPS = (0.5, 0.95)


@dataclass(frozen=True)
class Totals:
    """Counts since a start. Requests, and those that were invalid, rejected or failed, are those of the whole server.

    A count of the engine begins again at 0 if the engine is started again.
    """

    prompt_tokens: int
    output_tokens: int
    requests: int
    invalid: int
    errors: int
    rejected: int
    evicted: int
    cancelled: int
    step: Histogram

    @classmethod
    def of(cls, serving: Serving) -> "Totals":
        metrics, engine = serving.metrics, serving.engine.metrics()
        return cls(
            **metrics.server.totals(),
            prompt_tokens=engine.prefilled,
            output_tokens=metrics.times.tokens,
            evicted=metrics.count("kv_evicted_tokens"),
            cancelled=metrics.count("requests_cancelled"),
            step=engine.step,
        )


COUNTS = [field.name for field in fields(Totals) if field.type is int]


class History:
    """Of one model. clock: returns the seconds since the server's start."""

    def __init__(self, serving: Serving, clock: Callable[[], float]) -> None:
        self._serving, self._clock = serving, clock
        self._points: deque[JSON] = deque(maxlen=POINTS)
        self._last = Totals.of(serving)

    def take(self) -> None:
        """Add a point for the time since the last point."""
        now, stats, taken = Totals.of(self._serving), self._serving.engine.stats(), self._serving.metrics.taken
        self._points.append(
            {
                "t": round(self._clock(), 3),
                **between(self._last, now),
                "ttft": quantiles(taken("time_to_first_token_seconds"), SHOWN),
                "tpot": quantiles(taken("time_per_output_token_seconds"), SHOWN),
                "running": stats.running,
                "waiting": stats.waiting,
                "free_slots": stats.free_slots,
            }
        )
        self._last = now

    def points(self) -> list[JSON]:
        """Return the points, the oldest first."""
        return list(self._points)


def between(earlier: Totals, later: Totals) -> JSON:
    """Return what was counted and measured between two totals."""
    counted = {name: since(getattr(earlier, name), getattr(later, name)) for name in COUNTS}
    step = later.step.since(earlier.step)
    return counted | {"step": {_name(share): step.quantile(share) for share in OF_STEPS}}


def since(earlier: int, later: int) -> int:
    """Return how much a count has grown; all of it if it has begun again."""
    return later - earlier if later >= earlier else later


def quantiles(values: Sequence[float], shares: Sequence[float]) -> dict[str, float | None]:
    """Return for each share the smallest value that so large a share of the values is at most; None without values."""
    ordered = sorted(values)
    return {_name(share): ordered[ceil(share * len(ordered)) - 1] if ordered else None for share in shares}


def _name(share: float) -> str:
    return f"p{round(100 * share)}"


class Histories:
    """Of all models, by their own names."""

    def __init__(self, served: Iterable[Serving], clock: Callable[[], float]) -> None:
        self.clock = clock
        self._histories = {serving.names[0]: History(serving, clock) for serving in served}

    def of(self, model: str) -> JSON:
        return {"interval": INTERVAL, "now": round(self.clock(), 3), "points": self._histories[model].points()}

    @asynccontextmanager
    async def running(self, _: object = None) -> AsyncIterator[None]:
        """Take a point of each model every `INTERVAL` seconds while the block runs; the lifespan of an application."""
        taking = asyncio.create_task(self._run())
        try:
            yield
        finally:
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            for history in self._histories.values():
                history.take()
