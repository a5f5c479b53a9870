"""Live: the state of one model's slots, for pages that show it. All who watch share one subscription.

The engine says what its slots hold only while somebody watches. A watcher that is slow gets the latest tick, and misses
those before it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict
from time import monotonic

from ringkv.base.version import VERSION
from ringkv.residency.catalogue import caution
from ringkv.server.protocol.stream import event
from ringkv.server.run.answer import JSON
from ringkv.server.run.requests import answer_of_request
from ringkv.server.run.serving import Serving

EVERY = 0.25  # seconds between two ticks, at least
AT_MOST = 5.0  # seconds between two ticks, if nothing changes


class Live:
    """clock: returns the seconds since the server's start."""

    def __init__(self, serving: Serving, names: Sequence[str], clock: Callable[[], float]) -> None:
        self._serving, self._names, self._clock = serving, names, clock
        self._watchers = 0
        self._posting: asyncio.Task[None] | None = None
        self._latest, self._count = b"", 0  # the last tick as an event, and how many there were
        self._posted = asyncio.Event()  # of the next tick
        self._is_closed = False

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield `hello`, then a tick whenever something has changed, until `close`."""
        yield event(hello(self._serving, self._names), "hello")
        self._watchers += 1
        if self._posting is None:
            self._latest = b""
            self._serving.engine.watch(True)
            self._posting = asyncio.create_task(self._post())
        try:
            seen = 0
            while not self._is_closed:
                if self._latest and self._count != seen:
                    seen = self._count
                    yield self._latest
                else:
                    await self._posted.wait()
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._posting.cancel()
                self._posting = None
                self._serving.engine.watch(False)

    def close(self) -> None:
        """End all streams, now and later."""
        self._is_closed = True
        self._wake()

    async def _post(self) -> None:
        """Post a tick whenever something has changed, and now and then if nothing has."""
        last: JSON = {}
        posted = 0.0
        while True:
            now, state = self._clock(), tick(self._serving)
            if state != last or now - posted >= AT_MOST:
                last, posted = state, now
                self._latest, self._count = event({"t": round(now, 3), **state}, "tick"), self._count + 1
                self._wake()
            await asyncio.sleep(EVERY)

    def _wake(self) -> None:
        self._posted.set()
        self._posted = asyncio.Event()


def hello(serving: Serving, names: Sequence[str]) -> JSON:
    """Return what does not change while a server runs. names: those of all its models."""
    limits, kv = serving.engine.limits, serving.engine.default_kv
    return {
        "model": serving.names[0],
        "models": list(names),
        "version": VERSION,
        "limits": {
            "slots": limits.slots,
            "capacity": limits.capacity,
            "longest_full": limits.workspace.size if limits.answers_in_lanes else limits.capacity,
            "prompt_tokens": limits.longest_prompt,
            "context": limits.context,
            "slot_bytes": limits.request_bytes,
            "entry_bytes": limits.entry_bytes * limits.request_bytes // limits.slot_bytes,
            "staging_bytes": limits.staging_bytes,
            "store_bytes": limits.store_bytes,
            "held_bytes": limits.held_bytes,
            "kv_format": limits.kv_format,
            "page": limits.page,
        },
        "default_kv": {"policy": kv.policy, "budget": kv.budget or limits.capacity},
        "policies": list(limits.policies),
        "layers": len(limits.heads),
        "heads": max(limits.heads, default=0),
        "caution": caution(serving.names[0]),
    }


def tick(serving: Serving) -> JSON:
    """Return what the engine does now, as of its latest messages, and what it has done since its start."""
    engine = serving.engine
    stats, metrics, held = engine.stats(), engine.metrics(), engine.slots()
    return {
        "waiting": stats.waiting,
        "prefilling": stats.prefilling,
        "running": stats.running,
        "free_slots": stats.free_slots,
        "alive": engine.alive,
        "steps": metrics.step.count,
        "tokens": serving.metrics.times.tokens,
        "prompt_tokens": metrics.prefilled,
        "prompts": [_of_answer(asdict(prompt)) for prompt in held.prompts],
        "slots": [_of_answer(asdict(slot)) for slot in held.slots],
    }


def _of_answer(state: JSON) -> JSON:
    return state | {"id": answer_of_request(state["id"])}


def server_clock() -> Callable[[], float]:
    """Return a clock of the seconds since now."""
    started = monotonic()
    return lambda: monotonic() - started
