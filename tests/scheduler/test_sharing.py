"""Requests that share a prompt, beside one that runs: the order of the engine calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import toy

from ringkv.base.engine import PrefillChunk
from ringkv.base.events import Event, Token, TokenLogprob
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.loop import Loop

PROMPT = tuple(range(1, 20))
SMALL, LARGE = KVChoice("streaming", budget=16), KVChoice("streaming", budget=32)


@dataclass
class Recorder(toy.ToyEngine):
    """Records the calls: p prefill, c compress, i insert, s sample, f forward."""

    calls: str = ""
    choices: list[KVChoice] = field(default_factory=list)  # passed to compress

    def prefill(self, work: Sequence[PrefillChunk], feed: bool = False) -> list[tuple[TokenLogprob, ...]]:
        self.calls += "p"
        return super().prefill(work, feed)

    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        self.calls += "c"
        self.choices.append(choice)
        return super().compress(lane, choice)

    def insert(self, lane: int, slot: int, request: Request) -> None:
        self.calls += "i"
        super().insert(lane, slot, request)

    def sample(self, forced=None, allowed=None) -> toy.ToyStep:  # type: ignore[no-untyped-def]
        self.calls += "s"
        return super().sample(forced, allowed)

    def forward(self, drafts=None):  # type: ignore[no-untyped-def]
        self.calls += "f"
        return super().forward(drafts)


def request(name: str, tokens: tuple[int, ...] = PROMPT, max_tokens: int = 5, kv: KVChoice | None = None) -> Request:
    return Request(name, tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True), kv)


def serve(loop: Loop) -> list[Event]:
    events = []
    while not loop.idle:
        events += loop.step()
    return events


def tokens(events: list[Event], name: str) -> list[int]:
    return [event.token for event in events if isinstance(event, Token) and event.request_id == name]


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("slots", [3, 9])
def test_a_running_request_waits_for_one_chunk_or_insertion_between_two_tokens(slots: int, lanes: int) -> None:
    engine = Recorder(toy.limits(slots=slots, lanes=lanes))
    loop = Loop(engine)
    loop.submit(request("running", (1, 2, 4), max_tokens=60))
    while loop.stats().running == 0:
        loop.step()
    engine.calls = ""
    events = loop.submit(*(request(f"n{i}") for i in range(7)))
    events += serve(loop)
    gaps = engine.calls.split("s")
    assert max(gap.count("p") for gap in gaps) == max(gap.count("i") for gap in gaps) == 1
    assert not any("p" in gap and "i" in gap for gap in gaps if "pci" not in gap)
    assert engine.calls.count("i") == 7
    assert all(tokens(events, f"n{i}") == toy.answer(PROMPT, 5) for i in range(7))


def test_each_request_that_shares_a_prompt_gets_its_own_choice() -> None:
    engine = Recorder(toy.limits(slots=4))
    choices = [SMALL, None, LARGE, KVChoice("streaming", budget=16), engine.default_kv, LARGE]
    loop = Loop(engine)
    loop.submit(*(request(f"{i}", kv=kv) for i, kv in enumerate(choices)))
    events = serve(loop)
    assert engine.choices == [kv or engine.default_kv for kv in choices]
    assert engine.calls.count("i") == len(choices)
    assert all(tokens(events, f"{i}") == toy.answer(PROMPT, 5) for i in range(len(choices)))


def test_another_prompt_in_the_same_lane_is_compressed_again() -> None:
    engine = Recorder(toy.limits(slots=4))
    loop = Loop(engine)
    loop.submit(request("a"), request("b"))
    loop.submit(request("c", (50, 60)), request("d", (50, 60)))
    events = serve(loop)
    assert tokens(events, "b") == toy.answer(PROMPT, 5)
    assert tokens(events, "d") == toy.answer((50, 60), 5)
