"""A scheduler of an engine whose passes take several prompts and the slots; and prompts that share a prefill."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from ringkv.base.engine import Cached, Limits, PrefillChunk
from ringkv.base.events import Event, Finished, Token, TokenLogprob
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.loop import Loop
from tests import toy

STORE = 10**6


def limits(**changes: Any) -> Limits:
    shapes = {"slots": 8, "lanes": 8, "chunk": 128, "staged_entries": 1024, "unit": 32, "packs": True, "rides": True}
    return toy.limits(**{**shapes, "max_step": 1.0, "held_bytes": STORE, **changes})


@dataclass
class Timed(toy.ToyEngine):
    """A row of a pass takes 10 ms of a clock, an insertion 50 ms. Lanes are checked not to overlap."""

    clock: float = 0.0
    passes: list[list[PrefillChunk]] = field(default_factory=list)
    places: dict[int, range] = field(default_factory=dict)

    def begin(self, request: Request, lane: int, entries: range | None = None) -> Cached:
        assert entries is not None
        assert len(entries) >= min(len(request.tokens), self.limits.workspace.size)
        self.places[lane] = entries
        return super().begin(request, lane, entries)

    def prefill(self, work: Sequence[PrefillChunk], feed: bool = False) -> list[tuple[TokenLogprob, ...]]:
        self.passes.append(list(work))
        self.clock += 0.01 * (sum(chunk.stop - chunk.start for chunk in work) + feed * len(self.slots))
        own = [self.places[chunk.lane] for chunk in work]
        assert sum(map(len, own)) == len(set().union(*own)), "two lanes share an entry"
        return super().prefill(work, feed)

    def insert(self, lane: int, slot: int, request: Request) -> None:
        self.clock += 0.05
        super().insert(lane, slot, request)

    def forward(self, drafts: Any = None) -> Mapping[int, int]:
        self.clock += 0.0 if self.passes and self.sampled is None else 0.01 * len(self.slots)
        return super().forward(drafts)


def prompt(name: str, tokens: Sequence[int], max_tokens: int = 5, **others: Any) -> Request:
    return Request(name, tuple(tokens), SamplingParams(max_tokens=max_tokens, ignore_eos=True), **others)


def serve(loop: Loop) -> list[Event]:
    events = []
    while not loop.idle:
        events += loop.step()
    return events


def answers(events: list[Event]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, Token):
            found.setdefault(event.request_id, []).append(event.token)
    return found


def started(**changes: Any) -> tuple[Timed, Loop]:
    engine = Timed(limits(**changes))
    return engine, Loop(engine, clock=lambda: engine.clock)


def test_prompts_that_arrive_together_share_a_pass() -> None:
    engine, loop = started()
    for n in range(8):
        loop.submit(prompt(f"{n}", [n + 1] * 12))
    found = answers(serve(loop))
    assert [len(work) for work in engine.passes] == [8]
    assert found == {f"{n}": toy.answer([n + 1] * 12, 5) for n in range(8)}


def test_slots_are_fed_in_the_pass_that_prefills() -> None:
    engine, loop = started()
    loop.submit(prompt("running", [3] * 5, max_tokens=40))
    while not loop.stats().running:
        loop.step()
    engine.log.clear()
    loop.submit(prompt("late", [5] * 200))
    events = serve(loop)
    calls = [line for line in engine.log if line in ("sample", "forward") or isinstance(line, toy.Chunk)]
    chunks = [place for place, line in enumerate(calls) if isinstance(line, toy.Chunk)]
    assert len(chunks) > 1
    assert all(calls[place - 1] == "sample" and calls[place + 1] == "forward" for place in chunks)
    assert answers(events)["late"] == toy.answer([5] * 200, 5)


def gaps(loop: Loop, engine: Timed, events: list[Event]) -> Iterator[float]:
    last: dict[str, float] = {}
    while not loop.idle:
        for event in [*events, *loop.step()]:
            if isinstance(event, Token):
                if event.request_id in last:
                    yield engine.clock - last[event.request_id]
                last[event.request_id] = engine.clock
        events = []


@pytest.mark.parametrize("bound", [0.6, 1.0, 1.5])
def test_the_time_between_two_tokens_stays_within_max_step(bound: float) -> None:
    engine, loop = started(max_step=bound)
    random = Random(5)
    for n in range(80):
        loop.submit(prompt(f"{n}", random.choices(range(97), k=random.randint(5, 300)), random.randint(5, 40)))
    found = list(gaps(loop, engine, []))
    late = found[len(found) // 4 :]  # the costs are known by then
    assert sum(gap <= 1.2 * bound for gap in late) >= 0.99 * len(late)
    assert max(late) > 0.5 * bound, "prompts could have been prefilled faster"


@dataclass
class Scoring(Timed):
    """A row whose next token gets a log-probability takes 40 ms more."""

    def prefill(self, work: Sequence[PrefillChunk], feed: bool = False) -> list[tuple[TokenLogprob, ...]]:
        scored = [chunk for chunk in work if chunk.request.sampling.prompt_logprobs is not None]
        self.clock += 0.04 * sum(chunk.stop - chunk.start for chunk in scored)
        return super().prefill(work, feed)


def test_a_prompt_whose_tokens_are_scored_holds_nobody_up_from_its_first_chunk_on() -> None:
    engine = Scoring(limits(max_step=2.0))
    loop = Loop(engine, clock=lambda: engine.clock)
    loop.submit(prompt("b", [6], max_tokens=100))
    for n in range(20):
        loop.submit(prompt(f"{n}", Random(n).choices(range(97), k=200), max_tokens=2))
    for _ in range(60):  # what other prompts cost is known
        loop.step()
    asked = Request("c", (7,) * 300, SamplingParams(max_tokens=1, prompt_logprobs=1))
    loop.submit(asked)
    assert max(gaps(loop, engine, [])) <= 1.2 * 2.0


@dataclass
class Reviewing(Timed):
    """A slot is reviewed every 20 tokens, which takes 0.4 s."""

    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        return tuple(one._replace(review=20) for one in super().compress(lane, choice))

    def forward(self, drafts: Any = None) -> Mapping[int, int]:
        for slot in self.slots.values():
            layout = toy.layout(len(slot.request.tokens), self.default_kv, self.limits.capacity)._replace(review=20)
            self.clock += 0.4 * layout.is_due(len(slot.tokens))
        return super().forward(drafts)


def test_prompts_leave_time_for_reviews() -> None:
    engine = Reviewing(limits(max_step=1.0))
    loop, random = Loop(engine, clock=lambda: engine.clock), Random(5)
    for n in range(100):
        loop.submit(prompt(f"{n}", random.choices(range(97), k=random.randint(5, 300)), random.randint(20, 60)))
    found = list(gaps(loop, engine, []))
    assert max(found[len(found) // 4 :]) <= 1.0  # the costs are known by then


@dataclass
class ReviewingInTurns(Timed):
    """Slots have 16 layers. Each takes 50 ms to be scored, every 20 tokens in 8 steps; evicting takes 20 ms."""

    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        return tuple(one._replace(review=20, layers=16, steps=8) for one in super().compress(lane, choice))

    def forward(self, drafts: Any = None) -> Mapping[int, int]:
        for slot in self.slots.values():
            prompt = len(slot.request.tokens)
            fed, ring = len(slot.tokens) - prompt, toy.layout(prompt, self.default_kv, self.limits.capacity).ring
            before = (ring - fed) % 20  # tokens before it is due
            self.clock += 0.1 * (before < 8 and fed > 0) + 0.02 * (before == 0 and fed > 0)
        return super().forward(drafts)


def test_prompts_leave_time_for_the_turns_of_layers_and_no_step_waits_for_a_whole_review() -> None:
    """A review takes 0.8 s. All at once, it and what a slot waits for beside it would be over the bound."""
    engine = ReviewingInTurns(limits(slots=3, max_step=1.0))
    loop, random = Loop(engine, clock=lambda: engine.clock), Random(5)
    for n in range(60):
        loop.submit(prompt(f"{n}", random.choices(range(97), k=random.randint(5, 300)), random.randint(20, 60)))
    found = list(gaps(loop, engine, []))
    late = found[len(found) // 4 :]  # the costs are known by then
    assert max(late) <= 1.0
    assert max(late) > 0.5, "prompts could have been prefilled faster"


def test_prompts_get_as_long_as_decoding_if_that_takes_most_of_max_step() -> None:
    engine, loop = started(slots=64, lanes=16, max_step=0.2)  # 60 slots take 0.6 s
    for n in range(60):
        loop.submit(prompt(f"{n}", [n] * 5, max_tokens=400))
    for _ in range(300):
        loop.step()
    before = len(engine.passes)
    for n in range(60, 64):
        loop.submit(prompt(f"{n}", [n] * 300, max_tokens=1))
    while any(loop.scheduler.usage(f"{n}") for n in range(60, 64)):
        assert loop.scheduler.usage("0"), "the others ended first"
        loop.step()
    rows = [sum(chunk.stop - chunk.start for chunk in one) for one in engine.passes[before:]]
    assert 1200 / len(rows) > 32


def test_the_same_prompt_is_prefilled_once_however_often_it_is_asked() -> None:
    engine, loop = started()
    same = list(range(1, 60))
    events = [event for n in range(50) for event in loop.submit(prompt(f"{n}", same))]
    events += serve(loop)
    for n in range(50, 100):
        loop.submit(prompt(f"{n}", same))
        events += serve(loop)
    assert [type(line) for line in engine.log].count(toy.Begun) == 1
    assert answers(events) == {f"{n}": toy.answer(same, 5) for n in range(100)}
    cached = Counter(event.usage.cached_tokens for event in events if isinstance(event, Finished))
    assert cached[59] >= 92  # all except those who joined while it was prefilled


@pytest.mark.parametrize("other", [{"salt": "other"}, {"prompt_logprobs": 0}, {}])
def test_prompts_of_others_scored_ones_and_those_without_a_store_are_prefilled_each(other: dict[str, Any]) -> None:
    engine, loop = started(held_bytes=STORE if other else 0)
    salt, scored = other.pop("salt", ""), other.get("prompt_logprobs")
    for name, own in (("a", ""), ("b", salt)):
        sampling = SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=scored)
        loop.submit(Request(name, (1, 2, 3), sampling, salt=own))
    serve(loop)
    assert [line.request_id for line in engine.log if isinstance(line, toy.Begun)] == ["a", "b"]


def test_a_kept_prompt_leaves_when_its_lane_is_needed() -> None:
    engine, loop = started(lanes=1, slots=2)
    for name, tokens in (("a", [1] * 9), ("b", [2] * 9), ("again", [1] * 9)):
        loop.submit(prompt(name, tokens))
        serve(loop)
    assert [line.request_id for line in engine.log if isinstance(line, toy.Begun)] == ["a", "b", "again"]
    assert loop.stats().free_lanes == 1


def test_a_prompt_waits_for_the_blocks_of_one_that_begins_alike() -> None:
    engine, loop = started(chunk=64)
    loop.submit(prompt("a", [7] * 200))
    loop.submit(prompt("b", [7] * 130 + [8] * 70))
    loop.submit(prompt("c", [9] * 20))
    serve(loop)
    begun = [line.request_id for line in engine.log if isinstance(line, toy.Begun)]
    chunks = [line for line in engine.log if isinstance(line, toy.Begun | toy.Chunk)]
    place = chunks.index(toy.Begun("b"))
    before = [line.work.stop for line in chunks[:place] if isinstance(line, toy.Chunk) and line.work.request.id == "a"]
    assert begun == ["a", "c", "b"]
    assert max(before) >= 128


def test_a_prompt_waits_no_longer_than_the_other_stores_blocks() -> None:
    engine, loop = started(chunk=64, prefill_workspace=128)
    loop.submit(prompt("a", [7] * 500))
    loop.submit(prompt("b", [7] * 500 + [8]))
    serve(loop)
    order = [line for line in engine.log if isinstance(line, toy.Begun | toy.Chunk)]
    before = order[: order.index(toy.Begun("b"))]
    assert max(line.work.stop for line in before if isinstance(line, toy.Chunk)) == 64  # the last tokens are prefilled


def test_a_short_prompt_passes_one_that_needs_more_entries_than_are_free() -> None:
    _, loop = started(staged_entries=700, prompt_tokens=512, chunk=64)
    loop.submit(prompt("long", [1] * 500))
    loop.submit(prompt("longer", [2] * 512))
    loop.submit(prompt("short", [3] * 20))
    found = [event.request_id for event in serve(loop) if isinstance(event, Finished)]
    assert found == ["short", "long", "longer"]


def test_kept_prompts_leave_for_a_short_one_that_passes_a_longer_one() -> None:
    _, loop = started(staged_entries=700, prompt_tokens=512, chunk=64)
    for name in range(4):
        loop.submit(prompt(f"kept {name}", [10 + name] * 40))
    serve(loop)
    for name, tokens in (("long", [1] * 500), ("longer", [2] * 512), ("short", [3] * 150)):
        loop.submit(prompt(name, tokens))
    assert [event.request_id for event in serve(loop) if isinstance(event, Finished)] == ["short", "long", "longer"]


def test_a_short_prompt_that_joins_another_takes_no_lane_of_its_own() -> None:
    _, loop = started(staged_entries=700, prompt_tokens=512, chunk=64)
    for name, tokens in (("long", [1] * 500), ("longer", [2] * 512), ("a", [3] * 20), ("b", [3] * 20)):
        loop.submit(prompt(name, tokens))
    serve(loop)
    assert loop.stats().free_lanes == 8
    loop.submit(prompt("again", [4] * 512))
    assert "again" in answers(serve(loop))


@pytest.mark.parametrize("bound", [0.0, 0.2])
def test_answers_that_share_a_prompt_get_their_slots_although_prompts_keep_coming(bound: float) -> None:
    _, loop = started(max_step=bound)
    names = ("a", "b", "c")
    loop.submit(prompt("running", [1] * 9, max_tokens=200))
    loop.submit(*(prompt(name, [2] * 40, max_tokens=3) for name in names))
    events: list[Event] = []
    for n in range(60):
        loop.submit(prompt(f"more {n}", [n % 90] * 60, max_tokens=2))
        for _ in range(6):
            events += loop.step()
    ended = {event.request_id for event in events if isinstance(event, Finished)}
    assert ended >= set(names)


def test_salts_and_tokens_are_never_confused() -> None:
    engine, loop = started()
    loop.submit(prompt("a", (1, 2, 3), salt="A" + 7 * chr(0)))
    loop.submit(prompt("b", (1, 2, 3, ord("A"))))
    loop.submit(prompt("c", (1, 2, 3), salt=chr(0xD800)))
    found = answers(serve(loop))
    assert found["b"] == toy.answer((1, 2, 3, ord("A")), 5)
    assert [type(line) for line in engine.log].count(toy.Begun) == 3


def test_a_request_that_finds_its_prompt_prefilled_reports_no_prefill() -> None:
    engine, loop = started()
    for name in ("a", "b"):
        loop.submit(prompt(name, [5] * 60))
        (ended,) = [event for event in serve(loop) if isinstance(event, Finished)]
        assert (ended.usage.prefill_seconds > 0) == (name == "a")
        engine.clock += 100
