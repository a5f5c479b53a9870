"""steps: the time between two tokens of running requests, while a prompt of 8k is read and while none is."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import numpy as np

from bench.results import Figure
from bench.roles.surroundings import SLOTS, Setting, answer, apart, both, request
from ringkv.base.events import Token
from ringkv.worker.client import EngineClient

RUNNING = SLOTS - 1
PROMPT, LONG = 512, 8000  # tokens of running requests' prompts, and of the one that is read
QUIET = 10.0  # seconds without a prompt
MOST = 1.3


class Times:
    """When each running request's tokens arrived."""

    def __init__(self) -> None:
        self._when: dict[str, list[float]] = {}

    async def follow(self, client: EngineClient, name: str) -> None:
        async for events in client.submit([[request(name, PROMPT, 7000)]]):
            now = time.perf_counter()
            self._when.setdefault(name, []).extend(now for event in events if isinstance(event, Token))

    def all_run(self) -> bool:
        return len(self._when) == RUNNING

    def between(self, begin: float, end: float) -> list[float]:
        """Return the seconds between two tokens of a request that both arrived in this time."""
        found = ([at for at in when if begin <= at <= end] for when in self._when.values())
        return [gap for when in found for gap in np.diff(when).tolist()]


async def run(setting: Setting, times: int) -> list[Figure]:
    """Measure two workers, and one engine for comparison."""
    return [await _measured(name, open(setting), times) for name, open in (("apart", _apart), ("both", both))]


@asynccontextmanager
async def _apart(setting: Setting) -> AsyncIterator[EngineClient]:
    async with apart(setting) as (_, client):
        yield client


async def _measured(name: str, opened: AbstractAsyncContextManager[EngineClient], times: int) -> Figure:
    async with opened as client:
        when = Times()
        running = [asyncio.create_task(when.follow(client, f"running-{one}")) for one in range(RUNNING)]
        while not when.all_run():
            await asyncio.sleep(0.05)
        quiet, reading, seconds = list[float](), list[float](), list[float]()
        for turn in range(times):
            begin = time.perf_counter()
            await asyncio.sleep(QUIET)
            middle = time.perf_counter()
            found = await answer(client, [request(f"long-{name}-{turn}", LONG, 1)])
            assert all(found.values()), "the long prompt has failed"
            end = time.perf_counter()
            quiet += when.between(begin, middle)
            reading += when.between(middle, end)
            seconds.append(end - middle)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    before, now = (float(np.percentile(gaps, 99)) for gaps in (quiet, reading))
    return {
        "part": "steps",
        "engine": name,
        "itl_quiet_p99_s": before,
        "itl_reading_p99_s": now,
        "itl_p99_ratio": now / before,
        "itl_quiet_s": float(np.median(quiet)),
        "itl_reading_s": float(np.median(reading)),
        "longest_gap_s": max(reading),
        "prefill_s": float(np.median(seconds)),
    }


def wrong(figures: Sequence[Figure]) -> list[str]:
    return [
        f"p99 while a prompt is read is {one['itl_p99_ratio']:.2f} of that without"
        for one in figures
        if one.get("engine") == "apart" and one["itl_p99_ratio"] > MOST
    ]
