"""An engine that repeats its prompt, and the server's channel to it inside this process.

    answer(prompt, count) = prompt, prompt, prompt, ... up to count tokens

A prompt that contains token BREAKS fails when its third token is sampled.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import cycle, islice
from pathlib import Path

from toy import ToyEngine, limits

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Sampled
from ringkv.base.errors import BadWeights, EngineDied
from ringkv.base.events import Event, TokenLogprob
from ringkv.base.guide import MakeGuide
from ringkv.base.kv import KVChoice
from ringkv.base.messages import EngineMetrics, KeptTokens, Occupancy, Stats
from ringkv.base.progress import Progress
from ringkv.base.request import Request
from ringkv.scheduler.loop import Loop
from ringkv.worker.client import Inbox

BREAKS = 0  # the byte 0x00
VOCAB = 258
IM_START, IM_END = 256, 257
LIMITS = limits(slots=4, vocab=VOCAB, capacity=64, prompt_tokens=512, context=600, held_bytes=123_456_789)


def answer(prompt: Sequence[int], count: int) -> list[int]:
    return list(islice(cycle(prompt), count))


def logprob(token: int, count: int) -> TokenLogprob:
    """Return invented but distinct values for the sampled token and the next `count - 1` ids."""
    return TokenLogprob(-0.25, tuple(((token + step) % VOCAB, -0.25 - step) for step in range(count)))


class EchoEngine(ToyEngine):
    def _sample(self, index: int, forced: int | None) -> Sampled:
        slot = self.slots.get(index)
        if slot is None:
            return Sampled(13, None)
        slot.sampled += 1
        prompt, top = slot.request.tokens, slot.request.sampling.logprobs
        if BREAKS in prompt and slot.sampled == 3:
            return Sampled(None, None)
        token = self.sampled[index] = self._allowed(index, prompt[(slot.sampled - 1) % len(prompt)])
        return Sampled(token, None if top is None else logprob(token, top))


class InProcess:
    """A `Supervisor` without a process: a task steps the same loop. It records the requests that it gets."""

    def __init__(self, engine: ToyEngine, seconds: float = 0.0, guide: MakeGuide | None = None) -> None:
        self.limits, self.default_kv, self.alive = engine.limits, engine.default_kv, True
        self.restarts = 0
        self.watched: list[bool] = []
        self.submitted: list[Request] = []
        self.cancelled: list[str] = []
        self.engine = engine
        self._loop = Loop(engine, guide=guide)
        self._seconds = seconds
        self._streams: dict[str, Inbox] = {}
        self._stepping: asyncio.Task[None] | None = None

    async def submit(self, groups: Sequence[Sequence[Request]]) -> AsyncGenerator[Sequence[Event], None]:
        if not self.alive:
            raise EngineDied("the engine process ended (exit status 1); restart it, and see its log")
        requests = [request for group in groups for request in group]
        inbox = Inbox([request.id for request in requests])
        self._streams |= {request.id: inbox for request in requests}
        self.submitted += requests
        for group in groups:
            self._deliver(self._loop.submit(*group))
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step())
        try:
            async with aclosing(inbox.batches()) as batches:
                async for events in batches:
                    yield events
        finally:
            for request_id in inbox.running:
                self.cancel(request_id)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self._deliver(self._loop.cancel(request_id))

    def stats(self) -> Stats:
        return self._loop.stats()

    def metrics(self) -> EngineMetrics:
        return self._loop.metrics()

    def watch(self, on: bool) -> None:
        self.watched.append(on)

    def slots(self) -> Occupancy:
        is_watched = self.watched.count(True) > self.watched.count(False)
        return self._loop.scheduler.slots() if is_watched else Occupancy()

    async def kept(self, name: str) -> KeptTokens | None:
        return self._loop.kept(name)

    async def _step(self) -> None:
        while not self._loop.idle:
            self._deliver(self._loop.step())
            await asyncio.sleep(self._seconds)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            inbox = self._streams[event.request_id]
            inbox.put(event)
            if inbox.wake():
                for request_id in list(inbox.running):
                    self.cancel(request_id)


def build(config: EngineConfig, on_progress: Progress) -> EchoEngine:
    on_progress(1, 1, "echo")
    return EchoEngine(LIMITS, config.kv)


def build_sluggish(config: EngineConfig, on_progress: Progress) -> EchoEngine:
    return EchoEngine(LIMITS, config.kv, seconds=0.05)


def build_once(config: EngineConfig, on_progress: Progress) -> EchoEngine:
    """Build an engine, but only for the first process in the working directory."""
    try:
        Path("built").touch(exist_ok=False)
    except FileExistsError:
        raise BadWeights("it was built before; use the first one") from None
    return EchoEngine(LIMITS, config.kv)


def build_slowly(config: EngineConfig, on_progress: Progress) -> EchoEngine:
    on_progress(0, 1, "echo")
    time.sleep(60)
    raise AssertionError


def channel(seconds: float = 0.0, guide: MakeGuide | None = None) -> InProcess:
    return InProcess(EchoEngine(LIMITS, KVChoice("streaming")), seconds, guide)
