import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise

import pytest
import toy

from ringkv.base.errors import DoesNotFit, EngineDied, EngineRestarting
from ringkv.base.failure import Failure
from ringkv.base.messages import Occupancy, Stats
from ringkv.worker.client import EngineClient
from ringkv.worker.supervisor import RestartPolicy, Supervisor
from tests.worker.asking import LONG, all_of, children, request, soon

QUICK = RestartPolicy(first=0.01, longest=0.05)


class Engine:
    """An engine without a process, which ends when its test wants it to."""

    def __init__(self, **limits: int) -> None:
        self.limits, self.default_kv, self.pid = toy.limits(**limits), toy.config().kv, 1
        self.death: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self.closed = False

    @property
    def alive(self) -> bool:
        return not self.death.done()

    def die(self, why: str = "killed") -> None:
        self.death.set_result(Failure("EngineDied", why))

    async def ended(self) -> Failure:
        return await self.death

    async def close(self, grace: float = 0) -> None:
        if self.alive:
            self.die()
        self.closed = True

    def stats(self) -> Stats:
        return Stats(0, 0, 1, 1)


def starting(*engines: Engine | Exception) -> Callable[[], Awaitable[Engine]]:
    """Return a `start` that returns these engines in turn, or raises these errors."""
    left = iter(engines)

    async def start() -> Engine:
        match next(left):
            case Exception() as error:
                raise error
            case engine:
                return engine

    return start


@asynccontextmanager
async def supervised(builder: str = "toy:build"):
    async def start() -> EngineClient:
        return await EngineClient.start(toy.config(), builder=builder)

    supervisor = Supervisor(await start(), start, QUICK)
    try:
        yield supervisor
    finally:
        await supervisor.close()


def test_a_killed_engine_ends_its_requests_and_is_started_again():
    async def main():
        async with supervised("toy:build_slow") as engine:
            limits, first = engine.limits, engine.pid
            streams = [asyncio.create_task(all_of(engine, request(f"r{i}", max_tokens=LONG))) for i in range(6)]
            await soon(lambda: engine.stats().running == 4)
            os.kill(first, signal.SIGKILL)
            errors = await asyncio.gather(*streams, return_exceptions=True)
            assert not engine.alive
            assert engine.stats() == Stats(0, 0, 0, 0)
            with pytest.raises(EngineRestarting, match="started again") as caught:
                await all_of(engine, request("meanwhile"))
            await soon(lambda: engine.alive)
            assert engine.limits is limits
            assert engine.pid != first
            answer = await all_of(engine, request("r0"))  # the id is free again
            return errors, caught.value, answer

    errors, refusal, (*tokens, end) = asyncio.run(main())
    assert [type(error) for error in errors] == [EngineDied] * 6
    assert refusal.retry_after >= 1
    assert [event.token for event in tokens] == toy.answer((1, 2, 3), 5)
    assert end.reason == "length"
    assert not children()


def test_an_engine_that_is_started_again_is_watched_as_the_one_before():
    async def main():
        async with supervised("toy:build_slow") as engine:
            engine.watch(True)
            streams = [asyncio.create_task(all_of(engine, request(f"r{i}", max_tokens=LONG))) for i in range(2)]
            await soon(lambda: len(engine.slots().slots) == 2)
            os.kill(engine.pid, signal.SIGKILL)
            await asyncio.gather(*streams, return_exceptions=True)
            assert engine.slots() == Occupancy()
            assert await engine.kept("r0") is None
            await soon(lambda: engine.alive)
            again = asyncio.create_task(all_of(engine, request("again", max_tokens=LONG)))
            await soon(lambda: [slot.id for slot in engine.slots().slots] == ["again"])
            again.cancel()

    asyncio.run(main())


def test_an_engine_is_watched_until_nobody_watches():
    async def main():
        async with supervised("toy:build_slow") as engine:
            for on in (True, True, False):
                engine.watch(on)
            stream = asyncio.create_task(all_of(engine, request("r", max_tokens=LONG)))
            await soon(lambda: len(engine.slots().slots) == 1)
            engine.watch(False)
            assert engine.slots() == Occupancy()
            stream.cancel()

    asyncio.run(main())


def test_restarts_leave_no_process_and_no_open_file():
    gc.collect()  # what earlier tests left open

    async def main():
        async with supervised() as engine:
            counts = []
            for _ in range(3):
                pid = engine.pid
                os.kill(pid, signal.SIGKILL)
                await soon(lambda: engine.alive and engine.pid != pid)  # noqa: B023 - awaited here
                counts.append((len(os.listdir("/proc/self/fd")), len(children())))
            return counts

    counts = asyncio.run(main())
    assert len(set(counts)) == 1
    assert counts[0][1] == 1


def test_waits_double_up_to_the_longest():
    policy = RestartPolicy()
    assert [policy.wait(n) for n in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert policy.wait(10**9) == 60


@pytest.mark.parametrize(("steady", "attempts"), [(0.0, [0, 0, 0]), (60.0, [0, 1, 2])])
def test_the_wait_starts_anew_only_after_an_engine_that_ran_for_long(steady, attempts):
    asked = []

    class Recorded(RestartPolicy):
        def wait(self, restarts):
            asked.append(restarts)
            return 0.0

    async def main():
        engines = [Engine() for _ in range(4)]
        supervisor = Supervisor(engines[0], starting(*engines[1:]), Recorded(steady=steady))
        for one, following in pairwise(engines):
            one.die()
            await soon(lambda: supervisor._engine is following)  # noqa: B023 - awaited here
            assert one.closed
        await supervisor.close()

    asyncio.run(main())
    assert asked == attempts


def test_it_gives_up_when_starts_fail_in_a_row_and_tells_the_last_error():
    async def main():
        first = Engine()
        errors = [OSError("no memory to fork"), *[DoesNotFit("4 slots need 9 GB")] * 4]
        supervisor = Supervisor(first, starting(*errors), QUICK)
        first.die("killed")
        error = await asyncio.wait_for(supervisor.given_up(), 10)
        assert supervisor.failure is error
        with pytest.raises(EngineRestarting):
            await all_of(supervisor, request("late"))
        await supervisor.close()
        return error

    error = asyncio.run(main())
    assert isinstance(error, DoesNotFit)
    assert "9 GB" in str(error)


def test_a_start_that_succeeds_after_failures_is_used():
    async def main():
        first, second = Engine(), Engine()
        supervisor = Supervisor(first, starting(DoesNotFit("no"), OSError("no"), second), QUICK)
        assert supervisor.failure is None
        first.die("killed")
        await asyncio.sleep(0)
        assert isinstance(supervisor.failure, EngineDied)
        await soon(lambda: supervisor.alive)
        assert supervisor.failure is None
        assert supervisor.stats() == second.stats()
        await supervisor.close()
        assert second.closed

    asyncio.run(main())


def test_an_engine_of_other_limits_is_not_used():
    async def main():
        first, others = Engine(), [Engine(vocab=50) for _ in range(5)]
        supervisor = Supervisor(first, starting(*others), QUICK)
        first.die()
        error = await asyncio.wait_for(supervisor.given_up(), 10)
        await supervisor.close()
        return error, [other.closed for other in others]

    error, closed = asyncio.run(main())
    assert "other limits" in str(error)
    assert all(closed)


def test_closing_while_it_waits_to_restart_starts_nothing():
    async def main():
        first = Engine()
        supervisor = Supervisor(first, starting(), RestartPolicy(first=60))
        first.die()
        await soon(lambda: first.closed)
        await asyncio.wait_for(supervisor.close(), 1)

    asyncio.run(main())


def test_closing_while_an_engine_starts_leaves_no_process():
    async def main():
        async def start_forever() -> EngineClient:
            return await EngineClient.start(toy.config(), builder="toy:build_forever")

        first = Engine()
        supervisor = Supervisor(first, start_forever, QUICK)
        first.die()
        await soon(children)
        await supervisor.close()

    asyncio.run(main())
    assert not children()


def test_closing_a_stream_frees_its_slot_after_a_restart():
    async def main():
        async with supervised("toy:build_slow") as engine:
            os.kill(engine.pid, signal.SIGKILL)
            await soon(lambda: not engine.alive)
            await soon(lambda: engine.alive)
            async with aclosing(engine.submit([[request("a", max_tokens=LONG)]])) as stream:
                await anext(stream)
                await soon(lambda: engine.stats().running == 1)
            await soon(lambda: engine.stats() == Stats(0, 0, 0, 4))

    asyncio.run(main())
