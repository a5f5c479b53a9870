"""Engines: the engines of a server's models, each with its supervisor."""

import asyncio
from collections.abc import Iterator
from typing import Protocol

from ringkv.base.errors import RingKVError
from ringkv.base.progress import Progress
from ringkv.worker.client import GRACE, EngineClient
from ringkv.worker.supervisor import RestartPolicy, Supervisor


class StartEngine(Protocol):
    """Starts an engine process and waits until it is ready; see `EngineClient.start`."""

    async def __call__(self, on_progress: Progress | None = None) -> EngineClient: ...


class Engines:
    """grace: seconds that an engine has to end by itself in `close`."""

    def __init__(self) -> None:
        self.grace = GRACE
        self._supervisors: list[Supervisor] = []

    def __iter__(self) -> Iterator[Supervisor]:
        return iter(self._supervisors)

    async def start(self, model: str, start: StartEngine, policy: RestartPolicy, on_progress: Progress | None) -> None:
        """Start a model's engine, and start it again whenever it ends. Raises the errors of its build."""
        engine = await start(on_progress=on_progress)
        self._supervisors.append(Supervisor(engine, start, policy, f"the engine of {model}"))

    def cancel_all(self) -> None:
        """End every request of every engine with the tokens that it has."""
        for engine in self:
            engine.cancel_all()

    async def given_up(self) -> RingKVError:
        """Wait until an engine has failed to start too often, and return why."""
        waits = [asyncio.create_task(engine.given_up()) for engine in self]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for wait in waits:
                wait.cancel()

    def raise_failure(self) -> None:
        """Raise why an engine is missing, if one is."""
        for engine in self:
            if engine.failure:
                raise engine.failure

    async def close(self) -> None:
        """End all engines at the same time."""
        await asyncio.gather(*(engine.close(self.grace) for engine in self))
