"""Processes of the benchmark: an engine that does both, a prefill worker, and a decode worker, each on its cores."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from secrets import token_hex

import psutil

from ringkv.base.config import EngineConfig
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.ranks.rendezvous import KEY
from ringkv.residency.locate import locate
from ringkv.worker.client import EngineClient

SLOTS, BUDGET, LONGEST = 8, 1024, 8192
STORE = 256 << 20  # bytes of the prefix store


@dataclass(frozen=True)
class Setting:
    """cores: of the prefill worker, and of the decode worker; the engine that does both has all of them."""

    model: str
    graphs: str
    cores: tuple[int, int]

    def config(self, threads: int) -> EngineConfig:
        folder = locate(self.model)
        options = Options(
            slots=SLOTS,
            kv_budget=BUDGET,
            prompt_tokens=LONGEST,
            prefix_store=STORE,
            graphs=self.graphs,  # type: ignore[arg-type]
            threads=threads,
        )
        return resolve(folder, load_config(folder), options, available_bytes())


def set_secret() -> None:
    os.environ[KEY] = token_hex(16)


@contextmanager
def on(cores: Sequence[int]) -> Iterator[None]:
    """Let processes that start in the block run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@asynccontextmanager
async def both(setting: Setting) -> AsyncIterator[EngineClient]:
    """One engine that prefills and decodes, with a thread for each core."""
    with on(setting.cores):
        client = await EngineClient.start(setting.config(len(set(setting.cores))))
    try:
        yield client
    finally:
        await client.close()


async def decoder(setting: Setting, *addresses: str) -> EngineClient:
    """Start a decode worker."""
    with on(setting.cores[1:]):
        config = setting.config(1)
        own = replace(config, prefill=addresses, store_bytes=0, lanes=1, staged_tokens=config.chunk)
        return await EngineClient.start(own)


class PrefillProcess:
    """`ringkv serve --role prefill`. address: where it listens, HOST:PORT."""

    def __init__(self, setting: Setting, address: str = "127.0.0.1:0") -> None:
        command = [str(Path(sys.executable).with_name("ringkv")), "serve", "--role", "prefill", "--listen", address]
        command += ["--model", setting.model, "--slots", str(SLOTS), "--kv-budget", str(BUDGET), "--threads", "1"]
        command += ["--max-prompt", str(LONGEST), "--prefix-store", str(STORE), "--graphs", setting.graphs]
        with on(setting.cores[:1]):
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        found = (re.search(r"decode workers at ([\d.]+:\d+)", line) for line in self._process.stdout)
        address = next((match[1] for match in found if match), "")
        if not address:
            raise RuntimeError("the prefill worker ended before it was ready; start it by hand to see why")
        self.address = address
        self.process = psutil.Process(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """End it as an operator does. Raises RuntimeError if it does not end well."""
        self._process.terminate()
        self._process.communicate(timeout=30)
        if self._process.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the prefill worker's exit status is {self._process.returncode}")


@asynccontextmanager
async def apart(setting: Setting) -> AsyncIterator[tuple[PrefillProcess, EngineClient]]:
    """A prefill worker and a decode worker that is connected to it."""
    prefill = PrefillProcess(setting)
    try:
        client = await decoder(setting, prefill.address)
        try:
            await served(client)
            yield prefill, client
        finally:
            await client.close()
    finally:
        prefill.close()


async def served(client: EngineClient) -> None:
    """Send requests until one is served. Raises RuntimeError after a minute."""
    import asyncio
    import time

    end = time.monotonic() + 60
    for number in range(10_000):
        if (await answer(client, [request(f"first-{number}", 16, 1)]))[f"first-{number}"]:
            return
        if time.monotonic() > end:
            raise RuntimeError("no request is served")
        await asyncio.sleep(0.05)


async def answer(client: EngineClient, group: Sequence[Request]) -> dict[str, list[int]]:
    """Return the tokens of requests that share a prompt; none of one that fails."""
    from ringkv.base.events import Failed, Token

    found: dict[str, list[int]] = {one.id: [] for one in group}
    async for events in client.submit([group]):
        for event in events:
            if isinstance(event, Token):
                found[event.request_id].append(event.token)
            elif isinstance(event, Failed):
                found[event.request_id] = []
    return found


def request(name: str, prompt: int, output: int, kv: KVChoice | None = None, **sampling: float) -> Request:
    """Return a request with a prompt of so many random tokens, the same for a name."""
    tokens = tuple(Random(name).choices(range(1000, 40_000), k=prompt))
    params = SamplingParams(max_tokens=output, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    return Request(name, tokens, params, kv)
