"""tokens: 200 mixed requests to one engine, then to two workers. Their tokens must be equal."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from bench.results import Figure
from bench.roles.surroundings import BUDGET, Setting, answer, apart, both, request
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.selectors import TOVA, KeyDiff, SnapKV
from ringkv.worker.client import EngineClient

AT_ONCE = 24  # groups that are submitted and have not ended
CHOICES: tuple[KVChoice | None, ...] = (
    None,
    KVChoice("streaming", budget=256),
    KVChoice("snapkv", budget=BUDGET),
    KVChoice("snapstream", budget=128, select=SnapKV(window=16)),
    KVChoice("snapstream", budget=256, select=KeyDiff()),
    KVChoice("snapstream", budget=256, select=TOVA()),
    KVChoice("full", budget=BUDGET),
)


async def run(setting: Setting, count: int) -> Figure:
    groups = mixed(count)
    async with both(setting) as client:
        expected, both_s = await _serve(client, groups)
    async with apart(setting) as (_, client):
        found, apart_s = await _serve(client, groups)
    equal = sum(bool(tokens) and found[name] == tokens for name, tokens in expected.items())
    return {
        "part": "tokens",
        "requests": len(expected),
        "same": equal / len(expected),
        "lost_requests": len(expected) - equal,
        "whole_both_s": both_s,
        "whole_apart_s": apart_s,
    }


def mixed(count: int) -> list[list[Request]]:
    """Return so many requests, in groups that share a prompt: most have one, some two or three."""
    random, groups, left = Random(0), list[list[Request]](), count
    while left:
        size = min(left, random.choice((1, 1, 1, 1, 2, 3)))
        groups.append(_group(f"{len(groups)}", size, random))
        left -= size
    return groups


def _group(name: str, size: int, random: Random) -> list[Request]:
    kv, length = random.choice(CHOICES), random.choice((16, 60, 150, 400, 900))
    sampling = random.choice(
        ({}, {"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.9}, {"repetition_penalty": 1.2})
    )
    first = request(name, length, random.choice((4, 16, 40)), kv, **sampling)
    return [replace(first, id=f"{name}-{one}", own_seed=random.getrandbits(60)) for one in range(size)]


async def _serve(client: EngineClient, groups: Sequence[Sequence[Request]]) -> tuple[dict[str, list[int]], float]:
    """Return each request's tokens, and the seconds of all."""
    room, began = asyncio.Semaphore(AT_ONCE), time.perf_counter()

    async def one(group: Sequence[Request]) -> dict[str, list[int]]:
        async with room:
            return await answer(client, group)

    answers = await asyncio.gather(*map(one, groups))
    return {name: tokens for some in answers for name, tokens in some.items()}, time.perf_counter() - began
