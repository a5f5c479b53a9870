"""kills: kill -9 of the prefill worker, then of a decode worker, again and again under load.

Two decode workers share a prefill worker. If the prefill worker is killed, requests that have a token finish, and the
others end with an error. If a decode worker is killed, the other's requests finish.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from statistics import median
from typing import Literal

import psutil

from bench.results import Figure
from bench.roles.surroundings import PrefillProcess, Setting, decoder, request, served
from ringkv.base.errors import RingKVError
from ringkv.base.events import Failed, Finished, Token
from ringkv.worker.client import EngineClient

CLIENTS = 6  # of each decode worker
HUNG = 30.0  # seconds without an event; a prefill worker that starts again takes fewer
PROMPTS = (30, 200, 700)
TOKENS = 60
Ending = Literal["finished", "error", "hung"]


@dataclass
class Sent:
    """One request. Times are `time.monotonic`."""

    began: float
    first: float = float("inf")  # when its first token arrived
    ended: float = float("inf")
    ending: Ending = "hung"


@dataclass
class Load:
    """Clients of a decode worker that send one request after another."""

    client: EngineClient
    sent: list[Sent] = field(default_factory=list)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    names: "count[int]" = field(default_factory=count)

    def start(self) -> None:
        self.tasks = [asyncio.create_task(self._keep_sending(one)) for one in range(CLIENTS)]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _keep_sending(self, client: int) -> None:
        random = Random(client)
        while True:
            self.sent.append(one := Sent(time.monotonic()))
            try:
                one.ending = await self._send(one, random.choice(PROMPTS))
            except RingKVError:
                one.ending = "error"
            except TimeoutError:
                one.ending = "hung"
            one.ended = time.monotonic()
            if one.ending != "finished":
                await asyncio.sleep(0.1)

    async def _send(self, one: Sent, length: int) -> Ending:
        stream = self.client.submit([[request(f"load-{next(self.names)}", length, TOKENS)]])
        try:
            while True:
                for event in await asyncio.wait_for(anext(stream), HUNG):
                    if isinstance(event, Token):
                        one.first = min(one.first, time.monotonic())
                    elif isinstance(event, Finished | Failed):
                        return "finished" if isinstance(event, Finished) else "error"
        finally:
            await stream.aclose()


async def run(setting: Setting, times: int) -> list[Figure]:
    prefill = PrefillProcess(setting)
    try:
        clients = [await decoder(setting, prefill.address) for _ in range(2)]
        try:
            for client in clients:
                await served(client)
            prefill, killed = await _kill_prefill(setting, prefill, clients, times)
            return [killed, await _kill_decode(setting, prefill, clients, times)]
        finally:
            for client in clients:
                await client.close()
    finally:
        prefill.close()


async def _kill_prefill(
    setting: Setting, prefill: PrefillProcess, clients: list[EngineClient], times: int
) -> tuple[PrefillProcess, Figure]:
    loads, kills, back = [Load(client) for client in clients], list[float](), list[float]()
    files = [_files(client.pid) for client in clients]
    for load in loads:
        load.start()
    for _ in range(times):
        await asyncio.sleep(2)
        kills.append(time.monotonic())
        prefill.kill()
        prefill = await asyncio.to_thread(PrefillProcess, setting, prefill.address)
        ready = time.monotonic()
        for client in clients:
            await served(client)
        back.append(time.monotonic() - ready)
    for load in loads:
        await load.stop()
    await asyncio.sleep(0.5)
    more = max(_files(client.pid) - before for client, before in zip(clients, files, strict=True))
    sent = [one for load in loads for one in load.sent]
    lost = [one for at in kills for one in sent if one.first < at < one.ended and one.ending != "finished"]
    met = [one for at in kills for one in sent if one.began < at < one.first and at < one.ended]
    return prefill, _figure("prefill", sent, _cancelled(lost), met, back, more)


async def _kill_decode(setting: Setting, prefill: PrefillProcess, clients: list[EngineClient], times: int) -> Figure:
    survivor, back, met = Load(clients[0]), list[float](), list[Sent]()
    files, sent = prefill.process.num_fds(), survivor.sent
    survivor.start()
    for _ in range(times):
        load = Load(clients[1])
        load.start()
        await asyncio.sleep(2)
        at, pid = time.monotonic(), clients[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await clients[1].ended()
        await asyncio.sleep(0.2)
        await load.stop()
        met += [one for one in load.sent if one.began < at < one.ended]
        await clients[1].close()
        began = time.monotonic()
        clients[1] = await decoder(setting, prefill.address)
        await served(clients[1])
        back.append(time.monotonic() - began)
    await survivor.stop()
    await asyncio.sleep(0.5)
    lost = _cancelled([one for one in sent if one.ending != "finished"])
    return _figure("decode", [*sent, *met], lost, met, back, prefill.process.num_fds() - files)


def _cancelled(sent: list[Sent]) -> list[Sent]:
    """Leave out those that the benchmark itself cancelled at its end: they have no end of their own."""
    return [one for one in sent if one.ended < float("inf")]


def _figure(side: str, sent: list[Sent], lost: list[Sent], met: list[Sent], back: list[float], files: int) -> Figure:
    """lost: requests that should have finished. met: those that a kill may end."""
    endings = Counter(one.ending for one in sent if one.ended < float("inf"))
    return {
        "part": "kills",
        "engine": side,
        "kills": len(back),
        "drained_requests": endings["finished"],
        "failed_requests": sum(one.ending == "error" for one in met),
        "lost_requests": len(lost),
        "hung_requests": endings["hung"],
        "more_files": files,
        "back_s": median(back),
        "slowest_back_s": max(back),
    }


def _files(pid: int | None) -> int:
    return psutil.Process(pid).num_fds()
