"""Traces: how much of what requests kept is remembered, and which."""

from dataclasses import replace

import numpy as np
import pytest
import toy

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice, Layout
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler import traces
from ringkv.scheduler.loop import Loop
from ringkv.scheduler.traces import Traces

RING = KVChoice("streaming", budget=16)


def request(name: str, n: int = 40) -> Request:
    return Request(name, tuple(range(n)), SamplingParams(max_tokens=1), RING, trace=True, owner="key-1")


def add(found: Traces, name: str, n: int = 40) -> None:
    plan = toy.layout(n, RING, 64)
    found.add(request(name, n), RING, (plan,), lambda: [np.arange(16)[None]])


def test_the_oldest_leave_first() -> None:
    found = Traces([1])
    for number in range(traces.REQUESTS + 2):
        add(found, f"r{number}/http")
    assert [found.find(f"r{number}") is not None for number in range(10)] == [False] * 2 + [True] * 8


def test_all_bits_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "BYTES", 12)
    found = Traces([1])
    add(found, "a")  # 40 tokens: 5 bytes
    add(found, "b")
    add(found, "c")
    assert [found.find(name) is not None for name in "abc"] == [False, True, True]
    add(found, "d", 1000)  # alone it is too large
    assert [found.find(name) for name in "bcd"] == [None] * 3


def test_what_an_engine_does_not_know_is_not_remembered() -> None:
    def unknown() -> list[np.ndarray]:
        raise InvalidRequest("unknown")

    found = Traces([1])
    found.add(request("a"), RING, (toy.layout(40, RING, 64),), unknown)
    assert found.find("a") is None


def test_a_loop_remembers_requests_with_the_field_and_reads_no_others() -> None:
    engine, read = toy.ToyEngine(toy.limits(heads=(1, 1))), []  # type: ignore[arg-type]
    keep = engine.kept
    engine.kept = lambda *place: read.append(place) or keep(*place)  # type: ignore[method-assign]
    loop = Loop(engine)
    for one in (request("a"), replace(request("b"), trace=False), request("short", 9)):
        loop.submit(one)
    while not loop.idle:
        loop.step()
    found = loop.kept("a")
    assert found is not None
    assert (found.owner, found.tokens, found.heads, found.policy) == ("key-1", 40, (1, 1), "streaming")
    assert found.layout == Layout(40, 4, 0, 12, 4, 4, 12, wraps=True)
    bits = np.unpackbits(np.frombuffer(found.bits, np.uint8).reshape(2, -1), axis=1)[:, :40]  # type: ignore[arg-type]
    assert bits.tolist() == [[1] * 4 + [0] * 24 + [1] * 12] * 2
    assert loop.kept("b") is None
    short = loop.kept("short")
    assert short is not None
    assert short.bits is None
    assert len(read) == 1
