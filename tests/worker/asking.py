"""Requests to a toy engine in another process, and what tests ask of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from multiprocessing import active_children
from multiprocessing.process import BaseProcess

from ringkv.base.events import Event
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.worker.client import EngineClient
from ringkv.worker.supervisor import Supervisor

LONG = 10**6


def request(name: str, *tokens: int, max_tokens: int = 5) -> Request:
    return Request(name, tokens or (1, 2, 3), SamplingParams(max_tokens=max_tokens))


async def all_of(client: EngineClient | Supervisor, *requests: Request) -> list[Event]:
    return await all_from(client.submit([requests]))


async def all_from(stream: AsyncIterator[Sequence[Event]]) -> list[Event]:
    return [event async for events in stream for event in events]


async def soon(condition) -> None:
    """Wait until the condition holds. Fails after ten seconds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def children() -> list[BaseProcess]:
    """Return our engine processes, without those of other tests."""
    return [child for child in active_children() if child.name == "ringkv-engine"]
