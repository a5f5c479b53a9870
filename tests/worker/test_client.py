import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from socket import socketpair

import msgspec
import psutil
import pytest
import toy

from bench.fuzz.channel import framed
from ringkv.base.errors import DoesNotFit, EngineDied, InvalidRequest, TooSlow
from ringkv.base.events import Failed, Finished, Token
from ringkv.base.messages import Cancel, Fatal, Occupancy, Stats
from ringkv.wire.link import Link
from ringkv.worker.client import FROM_ENGINE, EngineClient
from tests.refusals import refusal
from tests.worker.asking import LONG, all_from, all_of, children, request, soon


@asynccontextmanager
async def engine(builder: str = "toy:build") -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(toy.config(), builder=builder)
    try:
        yield client
    finally:
        await client.close()


def test_many_concurrent_requests_each_get_their_own_answer():
    async def main():
        async with engine() as client:
            requests = [request(f"r{i}", *range(1, i + 2), max_tokens=1 + i % 7) for i in range(60)]
            return requests, await asyncio.gather(*(all_of(client, one) for one in requests))

    requests, answers = asyncio.run(main())
    for one, (*tokens, end) in zip(requests, answers, strict=True):
        assert [event.token for event in tokens] == toy.answer(one.tokens, one.sampling.max_tokens)
        assert end.reason == "length"


def test_what_slots_hold_is_known_while_it_is_watched():
    async def main():
        async with engine("toy:build_slow") as client:
            client.watch(True)
            running = asyncio.create_task(all_of(client, request("r", 1, 2, 3, max_tokens=150)))
            await soon(lambda: client.slots().slots)
            (slot,) = client.slots().slots
            assert (slot.id, slot.prompt, slot.policy) == ("r", 3, "streaming")
            assert 3 <= slot.seen < 153
            await running
            await soon(lambda: client.slots() == Occupancy())
            client.watch(False)
            await all_of(client, request("s", 1, 2, max_tokens=2))
            assert client.slots() == Occupancy()

    asyncio.run(main())


def test_what_a_request_has_kept_is_fetched_also_after_its_end():
    async def main():
        async with engine() as client:
            await all_of(client, replace(request("r/http", *range(9), max_tokens=2), trace=True))
            found, nothing = await asyncio.gather(client.kept("r"), client.kept("s"))
            assert (found.tokens, found.bits, nothing) == (9, None, None)
            asking = asyncio.create_task(client.kept("r"))
            await asyncio.sleep(0)
            os.kill(client.pid, signal.SIGKILL)
            with suppress(EngineDied):
                assert await asking == found  # the answer may have come first
            await client.ended()
            with pytest.raises(EngineDied):
                await client.kept("r")

    asyncio.run(main())


def test_start_reports_progress_then_the_limits():
    reports = []

    async def main():
        client = await EngineClient.start(toy.config(), lambda *report: reports.append(report), builder="toy:build")
        assert client.alive
        assert (client.limits.slots, client.default_kv, client.stats()) == (4, toy.config().kv, Stats(0, 0, 0, 4))
        await client.close()
        assert not client.alive

    asyncio.run(main())
    assert reports == [(1, 2, "toy graphs"), (2, 2, "toy graphs")]


def test_a_failed_build_raises_its_own_error_and_leaves_no_process():
    with pytest.raises(DoesNotFit, match="4 slots need 9 GB"):
        asyncio.run(EngineClient.start(toy.config(), builder="toy:build_too_big"))
    assert not children()


def test_a_process_that_sends_an_invalid_message_is_ended():
    with pytest.raises(EngineDied, match="invalid message"):
        asyncio.run(EngineClient.start(toy.config(), builder="toy:build_with_bad_messages"))
    assert not children()


def test_a_cancelled_start_leaves_no_process():
    async def main():
        started = asyncio.Event()
        start = EngineClient.start(toy.config(), lambda *_: started.set(), builder="toy:build_forever")
        task = asyncio.create_task(start)
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not children()


def test_a_failed_request_ends_its_stream_and_no_other():
    async def main():
        async with engine() as client:
            return await asyncio.gather(all_of(client, request("insert")), all_of(client, request("b")))

    failed, finished = asyncio.run(main())
    assert [type(event) for event in failed] == [Failed]
    assert [event.token for event in finished[:-1]] == toy.answer((1, 2, 3), 5)


def test_a_cancelled_stream_ends_with_abort():
    async def main():
        async with engine("toy:build_slow") as client:
            events = []
            async for batch in client.submit([[request("a", max_tokens=LONG)]]):
                events += batch
                if len(events) >= 3:
                    client.cancel("a")
                    client.cancel("unknown")
            return events

    *tokens, end = asyncio.run(main())
    assert [event.token for event in tokens] == toy.answer((1, 2, 3), len(tokens))
    assert isinstance(end, Finished)
    assert end.reason == "abort"


def test_closing_a_stream_frees_its_slot():
    async def main():
        async with engine("toy:build_slow") as client:
            async with aclosing(client.submit([[request("a", max_tokens=LONG)]])) as stream:
                assert isinstance((await anext(stream))[0], Token)
                await soon(lambda: client.stats() == Stats(0, 0, 1, 3))
            await soon(lambda: client.stats() == Stats(0, 0, 0, 4))

    asyncio.run(main())


def test_a_cancelled_task_frees_its_slot():
    async def main():
        async with engine("toy:build_slow") as client:
            task = asyncio.create_task(all_of(client, request("a", max_tokens=LONG)))
            await soon(lambda: client.stats().running == 1)
            task.cancel()
            await soon(lambda: client.stats().running == 0)

    asyncio.run(main())


def test_an_id_is_refused_until_its_request_has_ended():
    async def main():
        async with engine("toy:build_slow") as client:
            async with aclosing(client.submit([[request("a", max_tokens=LONG)]])) as stream:
                await anext(stream)
                with refusal("id", "'a'"):
                    await all_of(client, request("a"))
            # The engine may still send tokens of the closed stream; they must not reach a new request.
            with pytest.raises(InvalidRequest):
                await all_of(client, request("a"))
            await soon(lambda: client.stats().running == 0)
            return await all_of(client, request("a", 5, 6))

    *tokens, _ = asyncio.run(main())
    assert [event.token for event in tokens] == toy.answer((5, 6), 5)


def test_a_stream_that_nobody_reads_ends_at_its_bound_and_frees_its_slot_at_once(monkeypatch):
    monkeypatch.setattr("ringkv.worker.client.UNREAD", 50)

    async def main():
        async with engine() as client, aclosing(client.submit([[request("a", max_tokens=LONG)]])) as stream:
            await anext(stream)
            await soon(lambda: client.stats() == Stats(0, 0, 0, 4))  # while the stream is open
            with pytest.raises(TooSlow, match="tokens wait"):
                await all_from(stream)

    asyncio.run(main())


def test_if_the_engine_is_killed_every_stream_and_later_submit_raises():
    async def main():
        async with engine("toy:build_slow") as client:
            streams = [asyncio.create_task(all_of(client, request(f"r{i}", max_tokens=LONG))) for i in range(6)]
            await soon(lambda: client.stats().running == 4)
            os.kill(client.pid, signal.SIGKILL)
            errors = await asyncio.gather(*streams, return_exceptions=True)
            assert not client.alive
            with pytest.raises(EngineDied, match="SIGKILL"):
                await all_of(client, request("late"))
            client.cancel("r0")
            return errors

    errors = asyncio.run(main())
    assert [type(error) for error in errors] == [EngineDied] * 6
    assert not children()


def test_if_the_engine_fails_streams_raise_its_error():
    async def main():
        async with engine() as client:
            with pytest.raises(EngineDied, match="fatal is broken"):
                await all_of(client, request("fatal"))
            await soon(lambda: not client.alive)

    asyncio.run(main())


def test_closing_ends_open_streams_and_leaves_no_process():
    async def main():
        client = await EngineClient.start(toy.config(), builder="toy:build_slow")
        stream = asyncio.create_task(all_of(client, request("a", max_tokens=LONG)))
        await soon(lambda: client.stats().running == 1)
        await client.close()
        await client.close()
        with pytest.raises(EngineDied, match="shut down"):
            await stream
        with pytest.raises(EngineDied):
            await all_of(client, request("b"))

    asyncio.run(main())
    assert not children()


def test_a_busy_engine_and_a_full_pipe_do_not_block_the_event_loop():
    prompt = tuple(i % 90 for i in range(500))

    async def main():
        async with engine("toy:build_slow") as client:
            os.kill(client.pid, signal.SIGSTOP)
            start = time.perf_counter()
            tasks = [asyncio.create_task(all_of(client, request(f"r{i}", *prompt, max_tokens=1))) for i in range(1000)]
            await asyncio.sleep(0.2)
            seconds = time.perf_counter() - start
            assert not any(task.done() for task in tasks)
            os.kill(client.pid, signal.SIGCONT)
            answers = await asyncio.gather(*tasks)
            return seconds, answers

    seconds, answers = asyncio.run(main())
    assert seconds < 2
    assert {events[0].token for events in answers} == set(toy.answer(prompt, 1))


WITHOUT_CLOSE = """
import asyncio, sys
import toy
from ringkv.worker.client import EngineClient

async def run():
    client = await EngineClient.start(toy.config(), builder="toy:build")
    print(client.pid, flush=True)

if __name__ == "__main__":
    asyncio.run(run())
"""


def test_a_program_without_close_still_exits_and_leaves_no_process(tmp_path):
    script = tmp_path / "without_close.py"
    script.write_text(WITHOUT_CLOSE)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env, timeout=30, check=True)
    assert not psutil.pid_exists(int(out.stdout))
    assert out.stderr == ""


def test_a_request_too_large_for_a_message_is_refused_alone(monkeypatch):
    monkeypatch.setattr("ringkv.worker.client.LARGEST", 1000)

    async def main():
        async with engine() as client:
            with pytest.raises(InvalidRequest, match="the engine takes 1,000") as caught:
                await all_of(client, request("a", *[1] * 600), request("b", *[1] * 600))
            assert caught.value.param == "prompt"
            return await all_of(client, request("a"))

    *tokens, _ = asyncio.run(main())
    assert [event.token for event in tokens] == toy.answer((1, 2, 3), 5)


class Process:
    """An engine process that is only a socket."""

    pid, exitcode = 1, -signal.SIGKILL

    def kill(self) -> None:
        self.killed = True

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return False


def is_fatal(frame: bytes) -> bool:
    """Whether a frame is still a valid `Fatal` after its mutation: its error is then that of the stream."""
    with suppress(msgspec.DecodeError):
        return isinstance(FROM_ENGINE.decode(frame[8:]), Fatal)
    return False


def test_garbage_from_the_engine_ends_its_streams_with_an_error_and_nothing_else():
    chance = random.Random(3)

    async def main():
        texts = []
        for _ in range(100):
            ours, theirs = socketpair()
            garbage = [frame for _ in range(3) if not is_fatal(frame := framed(chance))]
            client = EngineClient(Process(), ours, lambda *_: None)
            stream = asyncio.create_task(all_of(client, request("r", max_tokens=LONG), request("s")))
            await asyncio.sleep(0)
            with suppress(OSError):  # the client hangs up at the first bad message
                for frame in garbage:
                    theirs.sendall(frame)
            theirs.close()
            with pytest.raises(EngineDied) as caught:
                await asyncio.wait_for(stream, 5)
            texts.append(str(caught.value))
            client._ready.exception()  # nobody waits for it here
            await client.close()
        return texts

    texts = asyncio.run(main())
    assert len([text for text in texts if "invalid message" in text]) > 50


def test_a_message_that_only_the_server_sends_ends_the_engine():
    async def main():
        ours, theirs = socketpair()
        client = EngineClient(Process(), ours, lambda *_: None)
        Link(theirs, FROM_ENGINE).send(Cancel("r"))
        failure = await asyncio.wait_for(client.ended(), 5)
        client._ready.exception()
        await client.close()
        return failure

    assert "unknown message 'Cancel'" in asyncio.run(main()).message
