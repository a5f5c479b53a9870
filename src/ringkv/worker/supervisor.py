"""Supervisor: an engine whose process is started again when it ends.

    supervisor = Supervisor(await start(), start)
    async for events in supervisor.submit([[request]]): ...   # raises EngineRestarting while there is no engine
    failure = await supervisor.given_up()

It has the methods of `EngineClient`. Requests that run when the process ends get `EngineDied`; none is sent again,
because its client may have received a part of the answer.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import ceil
from time import monotonic

from ringkv.base.errors import EngineDied, EngineRestarting, RingKVError
from ringkv.base.events import Event
from ringkv.base.failure import in_short, revive
from ringkv.base.messages import EngineMetrics, KeptTokens, Occupancy, Stats
from ringkv.worker.client import GRACE, EngineClient, RequestGroups

Start = Callable[[], Awaitable[EngineClient]]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestartPolicy:
    """When an engine is started again. Times are in seconds."""

    first: float = 1.0  # wait before the first restart; it doubles with each restart that follows
    longest: float = 60.0
    steady: float = 10.0  # an engine that ran so long resets the wait to `first`
    failures: int = 5  # starts that may fail in a row; then the supervisor gives up

    def wait(self, restarts: int) -> float:
        """Return the seconds to wait before the next start, after so many restarts in a row."""
        return min(self.first * 2.0 ** min(restarts, 32), self.longest)


class Supervisor:
    """The engine of a server. Use it only from the event loop that made it. `limits` stay the same object."""

    def __init__(
        self, engine: EngineClient, start: Start, policy: RestartPolicy = RestartPolicy(), name: str = "the engine"
    ) -> None:
        """start: starts another engine like the first. name: in messages."""
        self.limits, self.default_kv = engine.limits, engine.default_kv
        self._engine, self._start, self._policy, self._name = engine, start, policy, name
        self._failure: RingKVError | None = None
        self.restarts = 0  # engines that were started again
        self._next = 0.0  # when an engine is expected, if none is there
        self._start_seconds = 0.0  # of the last start
        self._watchers = 0
        self._supervising = asyncio.create_task(self._supervise())

    @property
    def alive(self) -> bool:
        return self._engine.alive

    @property
    def failure(self) -> RingKVError | None:
        """Why there is no engine; None if there is an engine."""
        return None if self.alive else self._failure or EngineDied(f"{self._name} has ended")

    @property
    def pid(self) -> int | None:
        return self._engine.pid

    def stats(self) -> Stats:
        """Without an engine nothing runs and no slot is free."""
        return self._engine.stats() if self.alive else Stats(0, 0, 0, 0)

    def metrics(self) -> EngineMetrics:
        """Return what the latest engine has measured since its start."""
        return self._engine.metrics()

    def watch(self, on: bool) -> None:
        """Let the engine send what it holds, also those that are started later, until all who watch have ended."""
        self._watchers += 1 if on else -1
        if self._watchers == int(on):
            self._engine.watch(on)

    def slots(self) -> Occupancy:
        return self._engine.slots() if self.alive else Occupancy()

    async def kept(self, name: str) -> KeptTokens | None:
        return await self._engine.kept(name) if self.alive else None

    def submit(self, groups: RequestGroups) -> AsyncGenerator[Sequence[Event], None]:
        """Yield the events of requests as they arrive; see `EngineClient.submit`. Raises `EngineRestarting`."""
        if not self.alive:
            seconds = max(1, ceil(self._next - monotonic()))
            text = f"{self._name} has ended and is being started again; try again in {seconds} s"
            raise EngineRestarting(text, seconds)
        return self._engine.submit(groups)

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def cancel_all(self) -> None:
        self._engine.cancel_all()

    async def given_up(self) -> RingKVError:
        """Wait until too many starts in a row have failed, and return the error of the last."""
        return await asyncio.shield(self._supervising)

    async def close(self, grace: float = GRACE) -> None:
        """End the engine, by force after `grace` seconds, and start no other."""
        self._supervising.cancel()
        await asyncio.gather(self._supervising, return_exceptions=True)
        await self._engine.close(grace)

    async def _supervise(self) -> RingKVError:
        """Replace each engine that ends. Returns the error of the last start after giving up."""
        restarts = 0
        while True:
            ready = monotonic()
            self._failure = revive(await self._engine.ended())
            log.warning("%s: %s", self._name, self._failure)
            restarts = 0 if monotonic() - ready >= self._policy.steady else restarts
            await self._engine.close()
            restarts += await self._restart(restarts)
            if not self.alive:
                return self._failure

    async def _restart(self, restarts: int) -> int:
        """Start another engine; returns how many attempts that took. There is still none after `failures` of them."""
        for attempt in range(self._policy.failures):
            wait = self._policy.wait(restarts + attempt)
            log.warning("%s is started again in %g s", self._name, wait)
            self._next = monotonic() + wait + self._start_seconds
            await asyncio.sleep(wait)
            try:
                await self._replace()
            except Exception as error:
                self._failure = error if isinstance(error, RingKVError) else EngineDied(in_short(error))
                log.warning("%s did not start (attempt %d): %s", self._name, attempt + 1, error)
            else:
                return attempt + 1
        log.error("%s did not start %d times in a row; the server gives up", self._name, self._policy.failures)
        return self._policy.failures

    async def _replace(self) -> None:
        began = monotonic()
        engine = await self._start()
        self._start_seconds = monotonic() - began
        if engine.limits != self.limits:
            await engine.close()
            text = f"{self._name} started with other limits, so its model's files have changed; restart ringkv"
            raise EngineDied(text)
        self._engine = engine
        if self._watchers:
            engine.watch(True)
        self.restarts += 1
        log.warning("%s is ready again, process %s, after %.1f s", self._name, engine.pid, self._start_seconds)
