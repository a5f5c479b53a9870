import asyncio
from collections.abc import Sequence

import pytest

from ringkv.base.errors import EngineDied, TooSlow
from ringkv.base.events import Event, Failed, Token
from ringkv.worker import client
from ringkv.worker.client import Inbox


def put(box: Inbox, *events: Event) -> bool:
    for event in events:
        box.put(event)
    return box.wake()


async def read(box: Inbox, into: list[Sequence[Event]]) -> None:
    async for events in box.batches():
        into.append(events)


def test_a_reader_that_is_behind_gets_all_events_at_once_until_each_request_has_ended() -> None:
    async def main() -> list[Sequence[Event]]:
        box, got = Inbox(["a", "b"]), list[Sequence[Event]]()
        put(box, Token("a", 1), Token("b", 2))
        put(box, Token("a", 3), Failed("a", "EngineDied", ""))
        reading = asyncio.create_task(read(box, got))
        await asyncio.sleep(0)
        assert box.running == {"b"}
        put(box, Failed("b", "EngineDied", ""))
        await asyncio.wait_for(reading, 10)
        return got

    first, second = asyncio.run(main())
    assert first == [Token("a", 1), Token("b", 2), Token("a", 3), Failed("a", "EngineDied", "")]
    assert second == [Failed("b", "EngineDied", "")]


def test_an_error_comes_after_the_events_before_it_and_ends_those_after_it() -> None:
    async def main() -> list[Sequence[Event]]:
        box, got = Inbox(["a"]), list[Sequence[Event]]()
        put(box, Token("a", 1))
        box.end(EngineDied("it ended"))
        put(box, Token("a", 2))
        with pytest.raises(EngineDied, match="it ended"):
            await asyncio.wait_for(read(box, got), 10)
        return got

    assert asyncio.run(main()) == [[Token("a", 1)]]


def test_a_waiting_reader_gets_the_error() -> None:
    async def main() -> None:
        box = Inbox(["a"])
        reading = asyncio.create_task(read(box, []))
        await asyncio.sleep(0)
        box.end(EngineDied("it ended"))
        with pytest.raises(EngineDied):
            await asyncio.wait_for(reading, 10)

    asyncio.run(main())


def test_a_reader_that_is_too_far_behind_is_reported_once_and_gets_what_had_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "UNREAD", 50)

    async def main() -> tuple[list[bool], list[Sequence[Event]]]:
        box, got = Inbox(["a"]), list[Sequence[Event]]()
        reports = [put(box, Token("a", number)) for number in range(60)]
        with pytest.raises(TooSlow, match="50 tokens wait"):
            await asyncio.wait_for(read(box, got), 10)
        return reports, got

    reports, got = asyncio.run(main())
    assert reports == [False] * 49 + [True] + [False] * 10
    assert got == [[Token("a", number) for number in range(50)]]
