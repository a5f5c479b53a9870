"""Stop strings end a choice's text."""

import asyncio
from typing import Any

import pytest

from ringkv.base.errors import TooSlow
from ringkv.server import generation
from ringkv.server.generation import TokenOutput, merge
from tests.server.conftest import Served


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("b", "a"),
        ("cab", "ab"),  # across the boundary between two repetitions of the prompt
        (["zzz", "bc"], "a"),
        ("abcabca", ""),
        (["ca", "b"], "a"),
    ],
)
def test_the_text_ends_before_a_stop_string(served: Served, stop: Any, text: str) -> None:
    choice = served.post("completions", prompt="abc", stop=stop, max_tokens=30).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text, "stop")


def test_what_may_become_a_stop_string_is_held_back_and_sent_when_it_does_not(served: Served) -> None:
    chunks = served.chunks("completions", prompt="abcd", stop="bcx", max_tokens=6)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "", "", "bcd", "a", "b"]


def test_nothing_of_a_stop_string_is_ever_streamed(served: Served) -> None:
    chunks = served.chunks("completions", prompt="abcdef", stop="cde", max_tokens=30)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "b", "", "", ""]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_frees_the_slot_at_once(slow: Served) -> None:
    got = slow.post("completions", prompt="abc", stop="c", max_tokens=500).json()
    assert got["usage"]["completion_tokens"] == 3
    assert got["usage"]["kv"]["kept"] == 3
    assert slow.engine.cancelled == [slow.engine.submitted[0].id]
    slow.wait_until_free()


def test_a_stop_string_of_several_bytes_is_found(served: Served) -> None:
    choice = served.post("completions", prompt="a🌊b", stop="🌊", max_tokens=30).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("a", "stop")


def test_a_stop_string_wins_over_the_length_it_coincides_with(served: Served) -> None:
    choice = served.post("completions", prompt="abc", stop="c", max_tokens=3).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")


def test_one_choice_that_stops_leaves_the_others_alone(served: Served) -> None:
    got = served.post("completions", prompt=["abc", "xyz"], stop="b", max_tokens=5).json()
    assert [choice["text"] for choice in got["choices"]] == ["a", "xyzxy"]


def test_a_stream_that_nobody_reads_ends_and_is_closed_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "MOST_UNSENT", 50)
    produced, closed = 0, False

    async def endless() -> generation.OutputStream:
        nonlocal produced, closed
        try:
            while True:
                produced += 1
                yield 0, TokenOutput(7, "x", 0, False)
                await asyncio.sleep(0)
        finally:
            closed = True

    async def drained(outputs: generation.OutputStream) -> None:
        async for _ in outputs:
            pass

    async def read_one_and_wait() -> int:
        outputs = merge([endless()], 1)
        await anext(outputs)
        while not closed:
            await asyncio.sleep(0)
        with pytest.raises(TooSlow, match="50 tokens wait"):
            await drained(outputs)
        return produced

    assert 50 <= asyncio.run(asyncio.wait_for(read_one_and_wait(), 10)) <= 53
