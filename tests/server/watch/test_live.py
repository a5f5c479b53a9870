"""/ringkv/live: what watchers see of the slots."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from threading import Thread
from typing import Any

import httpx
import pytest

from ringkv.base.engine import RankBytes
from ringkv.base.kv import KVChoice, Layout
from ringkv.server.protocol.drain import Drain
from ringkv.server.protocol.guard import Access
from ringkv.server.protocol.keys import ApiKeys
from ringkv.server.watch import live
from ringkv.server.watch.live import Live, hello, server_clock
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import NAMES, Served, serving
from tests.server.echo import LIMITS, channel
from tests.server.protocol.test_keys import ALICE, KEYS, bearer

Event = tuple[str, dict[str, Any]]


@contextmanager
def watching(served: Served, **sent: Any) -> Iterator[Iterator[Event]]:
    """Yield the events of a stream as they arrive."""
    with httpx.stream("GET", f"{served.root}/ringkv/live", timeout=20, **sent) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Event]:
    for line in lines:
        if line.startswith("event: "):
            data = next(lines)
            assert data.startswith("data: ")
            yield line.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def ticks_until(events: Iterator[Event], found: Any) -> list[dict[str, Any]]:
    """Return the ticks up to the first for which `found` is true."""
    ticks = []
    for name, tick in events:
        assert name == "tick"
        ticks.append(tick)
        if found(tick):
            return ticks
    raise AssertionError(f"the stream ended: {ticks[-1:]}")


def in_background(served: Served, path: str, **body: Any) -> Thread:
    thread = Thread(target=served.post, args=(path,), kwargs=body)
    thread.start()
    return thread


def test_the_first_event_describes_the_model_and_its_memory(slow: Served) -> None:
    with watching(slow) as events:
        name, told = next(events)
    assert name == "hello"
    assert (told["model"], told["models"]) == (NAMES[0], list(NAMES))
    assert told["limits"]["slots"] == LIMITS.slots
    assert told["limits"]["held_bytes"] == 123_456_789
    assert told["limits"]["slot_bytes"] == told["limits"]["entry_bytes"] * told["limits"]["capacity"]
    assert told["default_kv"] == {"policy": "streaming", "budget": 64}
    assert told["caution"] == ""  # nobody has measured it


def test_a_slot_is_shown_as_the_requests_own_layout_says(slow: Served) -> None:
    body = {"prompt": "a" * 40, "max_tokens": 60, "kv_budget": 24, "stream": True}
    with watching(slow) as events:
        next(events)
        sent = Thread(target=slow.post, args=("completions",), kwargs=body)
        sent.start()
        ticks = ticks_until(events, lambda tick: tick["slots"] and tick["slots"][0]["seen"] >= 45)
        sent.join()
        after = ticks_until(events, lambda tick: not tick["slots"])[-1]
    (slot,) = ticks[-1]["slots"]
    # A ring of 20 entries behind 4 sinks.
    shown = {name: slot[name] for name in ("prompt", "sinks", "selected", "protected", "base", "ring", "capacity")}
    assert shown == {"prompt": 40, "sinks": 4, "selected": 0, "protected": 4, "base": 4, "ring": 20, "capacity": 24}
    plan = Layout(40, 4, 0, 20, 4, 4, 20, wraps=True)
    assert slot["live"] == min(4 + slot["seen"] - 4, 24) == plan.live(slot["seen"])
    assert (slot["policy"], slot["bytes"], slot["again"]) == ("streaming", LIMITS.request_bytes, 20)
    assert slot["id"].startswith("cmpl-")
    assert "/" not in slot["id"]
    assert slot["id"] == slow.engine.submitted[-1].id.partition("/")[0].removesuffix("-0-0")
    assert after["tokens"] == 60
    assert after["prompt_tokens"] == 40
    assert (after["running"], after["free_slots"]) == (0, LIMITS.slots)


def test_a_page_finds_its_request_by_the_id_of_its_chunks(slow: Served) -> None:
    with watching(slow) as events:
        next(events)
        body = {"prompt": "ab", "max_tokens": 100, "stream": True}
        with slow.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            chunk = json.loads(next(lines).removeprefix("data: "))
            shown = ticks_until(events, lambda tick: tick["slots"])[-1]["slots"]
    assert [slot["id"] for slot in shown] == [chunk["id"]]


def test_prompts_in_prefill_are_shown_with_their_progress(slow: Served) -> None:
    with watching(slow) as events:
        next(events)
        sent = in_background(slow, "completions", prompt="a" * 500, max_tokens=1)  # 63 chunks of 10 ms
        tick = ticks_until(events, lambda tick: tick["prompts"] and tick["prompts"][0]["prefilled"])[-1]
        sent.join()
    (prompt,) = tick["prompts"]
    assert prompt["tokens"] == 500
    assert 0 < prompt["prefilled"] < 500
    assert prompt["prefilled"] % LIMITS.chunk == 0
    assert tick["prefilling"] == 1


def test_there_are_at_most_four_ticks_a_second(slow: Served) -> None:
    with watching(slow) as events:
        next(events)
        began, sent = time.monotonic(), in_background(slow, "completions", prompt="ab", max_tokens=150)
        ticks = ticks_until(events, lambda tick: tick["tokens"] >= 150 and not tick["slots"])
        passed = time.monotonic() - began
        sent.join()
    assert 3 <= len(ticks) <= 4 * passed + 2
    assert [tick["t"] for tick in ticks] == sorted(tick["t"] for tick in ticks)
    assert all(later["t"] - earlier["t"] >= 0.2 for earlier, later in pairwise(ticks))


def test_an_idle_server_ticks_now_and_then(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "AT_MOST", 0.4)
    with watching(slow) as events:
        next(events)
        (_, one), (_, two) = next(events), next(events)
    assert two["t"] - one["t"] >= 0.4
    assert one | {"t": 0} == two | {"t": 0}


def test_the_engine_is_watched_once_while_anybody_watches(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "AT_MOST", 0.3)
    assert slow.engine.watched == []
    with watching(slow) as first:
        with watching(slow, params={"model": NAMES[1]}) as second:
            for events in (first, second):
                assert [next(events)[0] for _ in range(2)] == ["hello", "tick"]
            assert slow.engine.watched == [True]
        slow.http.get("/health")
        assert slow.engine.watched == [True]
        next(first)
    deadline = time.monotonic() + 10
    while slow.engine.watched != [True, False]:
        assert time.monotonic() < deadline, slow.engine.watched
        time.sleep(0.01)


def test_a_second_watcher_gets_the_latest_tick_at_once(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "AT_MOST", 60.0)
    with watching(slow) as first:
        next(first)
        _, seen = next(first)
        with watching(slow) as second:
            next(second)
            assert next(second) == ("tick", seen)


def test_a_slow_watcher_gets_the_latest_tick_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY", 0.001)
    monkeypatch.setattr(live, "AT_MOST", 0.0)
    engine = channel()

    class Model:
        names = NAMES
        metrics = type("Metrics", (), {"times": type("Times", (), {"tokens": 0})})

    Model.engine = engine  # type: ignore[attr-defined]

    async def main() -> tuple[int, int]:
        watched = Live(Model(), NAMES, server_clock())  # type: ignore[arg-type]
        events = watched.events()
        await anext(events)
        first = await anext(events)
        await asyncio.sleep(0.2)  # it does not read
        behind, second = watched._count, await anext(events)
        assert json.loads(second.partition(b"data: ")[2])["t"] > json.loads(first.partition(b"data: ")[2])["t"] + 0.1
        await events.aclose()
        return behind, watched._count

    behind, last = asyncio.run(main())
    assert behind > 20
    assert last - behind <= 2  # it got the newest, not the 20 before
    assert engine.watched == [True, False]


def test_an_engine_that_has_ended_is_shown_as_that(slow: Served) -> None:
    with watching(slow) as events:
        assert next(events)[0] == "hello"
        assert next(events)[1]["alive"]
        slow.engine.alive = False
        assert not ticks_until(events, lambda tick: not tick["alive"])[-1]["alive"]
        slow.engine.alive = True
        ticks_until(events, lambda tick: tick["alive"])


def test_an_unknown_model_is_404(served: Served) -> None:
    got = served.http.get("/ringkv/live", params={"model": "nobody"})
    assert (got.status_code, got.json()["error"]["code"]) == (404, "model_not_found")


def test_a_stream_needs_a_key(tokenizer: Tokenizer) -> None:
    with serving(channel(), tokenizer, None, access=Access(ApiKeys(KEYS))) as served:
        assert served.http.get("/ringkv/live").status_code == 401
        with watching(served, headers=bearer(ALICE)) as events:
            assert next(events)[0] == "hello"


def test_a_drain_ends_the_streams_at_once_and_does_not_wait_for_them(tokenizer: Tokenizer) -> None:
    drain = Drain()
    with serving(channel(0.01), tokenizer, None, drain=drain) as served, watching(served) as events:
        next(events)
        next(events)
        assert drain.running == 0
        began = time.monotonic()
        drain.begin(30)
        list(events)
        assert time.monotonic() - began < 5
        asyncio.run(asyncio.wait_for(drain.finished(), 1))
        assert served.http.get("/ringkv/live").json()["error"]["code"] == "draining"


def test_a_model_that_rarely_finds_a_fact_says_so() -> None:
    class Model:
        names = ("smollm2", "an-alias")

        class engine:
            default_kv = KVChoice("streaming")
            limits = LIMITS

    assert "try that model" in hello(Model(), Model.names)["caution"]  # type: ignore[arg-type]


def test_bytes_of_several_ranks_are_those_of_all() -> None:
    class Model:
        names = ("toy",)

        class engine:
            default_kv = KVChoice("streaming")
            limits = LIMITS

    one = hello(Model(), ("toy",))["limits"]  # type: ignore[arg-type]
    assert one["entry_bytes"] == LIMITS.entry_bytes
    Model.engine.limits = replace(LIMITS, rank_bytes=(RankBytes(1, LIMITS.slot_bytes),) * 4)
    four = hello(Model(), ("toy",))["limits"]  # type: ignore[arg-type]
    assert (four["entry_bytes"], four["slot_bytes"]) == (4 * one["entry_bytes"], 4 * one["slot_bytes"])
