"""Workers as processes, and what is left if one is killed."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from ringkv.base.config import EngineConfig
from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.progress import silent
from ringkv.base.ranks import Rank
from ringkv.base.request import Request
from ringkv.handoff.address import Address
from ringkv.handoff.prefill_worker import run
from ringkv.wire.handshake import KEY
from ringkv.worker.client import EngineClient
from tests.engine import tiny
from tests.engine.test_engine import prompt
from tests.worker.asking import all_of, children, soon


def serve(config: EngineConfig, address: Address, sentences: Connection) -> None:
    run(config, address, silent, sentences.send)


@contextmanager
def prefill_process(config: EngineConfig, address: Address) -> Iterator[tuple[psutil.Process, Address]]:
    """A prefill worker that is ready. It must have ended by SIGTERM, or have been killed, with the block."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=serve, args=(config, address, theirs))
    process.start()
    theirs.close()
    assert process.pid is not None
    try:
        sentence: str = ours.recv()
        yield psutil.Process(process.pid), Address.parse(sentence.rpartition(" ")[2])
    finally:
        process.terminate()
        process.join(10)
        status = process.exitcode
        process.kill()
    assert status in (0, -signal.SIGKILL)


def asked(name: str, length: int = 20, max_tokens: int = 8) -> Request:
    return tiny.request(prompt(length), name, max_tokens=max_tokens, ignore_eos=True)


def ended(events: list[Event]) -> Finished | Failed:
    end = events[-1]
    assert isinstance(end, Finished | Failed)
    return end


def tokens(events: list[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, Token)]


async def again(client: EngineClient, name: str) -> Finished:
    """Send requests until one is served: a lost worker is connected to again within some tenths of a second."""
    for attempt in range(100):
        end = ended(await all_of(client, asked(f"{name}-{attempt}")))
        if isinstance(end, Finished):
            await soon(lambda: client.stats().free_slots == client.limits.slots)
            return end
        assert end.kind == "PrefillUnavailable"
        await asyncio.sleep(0.1)
    raise AssertionError("no request is served")


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_a_killed_worker_fails_only_its_requests_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "a secret of 24 characters")
    tiny.save(tmp_path, "Llama")
    config = tiny.config(tmp_path, threads=1)

    async def kill_prefill(client: EngineClient, first: psutil.Process, at: Address) -> None:
        await soon(lambda: client.stats().free_slots == client.limits.slots)
        running = asyncio.create_task(all_of(client, asked("runs", max_tokens=300)))
        await soon(lambda: client.stats().running == 1)
        first.suspend()  # so that prompts wait there
        waiting = asyncio.create_task(all_of(client, asked("waits", 200)))
        await soon(lambda: client.stats().prefilling == 1)
        first.kill()
        failed = ended(await asyncio.wait_for(waiting, 10))
        assert isinstance(failed, Failed)
        assert (failed.kind, str(at) in failed.message) == ("PrefillUnavailable", True)
        assert isinstance(ended(await running), Finished)
        assert isinstance(ended(await all_of(client, asked("none"))), Failed)

    async def kill_decode(client: EngineClient, prefill: psutil.Process) -> None:
        before = prefill.num_fds()
        waiting = [asyncio.create_task(all_of(client, asked(f"{n}", 200, max_tokens=300))) for n in range(5)]
        await soon(lambda: client.stats().running > 0)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        await asyncio.gather(*waiting, return_exceptions=True)
        await client.close()
        await soon(lambda: prefill.num_fds() < before)

    async def main() -> None:
        with prefill_process(config, Address("127.0.0.1", 0)) as (first, at):
            decode = replace(config, prefill=(str(at),))
            client = await EngineClient.start(decode)
            await again(client, "warm")
            engine = psutil.Process(client.pid)
            files, expected = engine.num_fds(), tokens(await all_of(client, asked("one rank", 150)))
            await kill_prefill(client, first, at)
        with prefill_process(replace(config, rank=Rank(0, 2)), at) as (second, _):
            await again(client, "back")
            assert tokens(await all_of(client, asked("two ranks", 150))) == expected
            assert engine.num_fds() == files
            files = second.num_fds()
            await kill_decode(client, second)
            other = await EngineClient.start(decode)
            await again(other, "other")
            assert second.num_fds() == files
            await other.close()

    asyncio.run(main())
    assert not children()
