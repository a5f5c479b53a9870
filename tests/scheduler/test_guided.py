"""Grammars in the loop, on an engine whose tokens are worked out by hand."""

import threading
from collections import defaultdict
from collections.abc import Callable

import pytest
from toy import ToyEngine, answer

from ringkv.base.errors import InvalidRequest, RequestFailed
from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.guide import Guide
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.loop import Loop

PROMPT = (3, 4)


class Only:
    """Allows the tokens that its grammar names, "5 6", one after another, and breaks where it says "!"."""

    def __init__(self, grammar: str) -> None:
        if not grammar[0].isdigit():
            raise InvalidRequest(f"{grammar!r} begins with no token", "grammar")
        self.left = grammar.split()
        self.taken: list[int] = []
        self.lefts: list[int] = []
        self.is_cut = False

    def allowed(self, left: int) -> bytes:
        self.lefts.append(left)
        word = self.left[len(self.taken)]
        if word == "!":
            raise RequestFailed("the grammar is broken")
        if word == "?":
            raise MemoryError("a library's own")
        return (1 << int(word)).to_bytes(16, "little")

    def take(self, token: int) -> None:
        self.taken.append(token)


class Made:
    """Keeps the guides that it made."""

    def __init__(self) -> None:
        self.guides: list[Only] = []

    def __call__(self, grammar: str) -> Guide:
        self.guides.append(Only(grammar))
        return self.guides[-1]


def request(name: str, count: int, grammar: str = "", forced: tuple[int, ...] = ()) -> Request:
    return Request(name, PROMPT, SamplingParams(max_tokens=count, grammar=grammar), forced=forced)


def run(loop: Loop, *requests: Request) -> dict[str, list[Event]]:
    events = [event for one in requests for event in loop.submit(one)]
    while not loop.idle:
        events += loop.step()
    return {one.id: [event for event in events if event.request_id == one.id] for one in requests}


def run_until(loop: Loop, is_over: Callable[[set[str]], bool], *requests: Request) -> dict[str, list[Event]]:
    """What each request was told until those that ended are enough."""
    told: dict[str, list[Event]] = defaultdict(list)
    for one in requests:
        loop.submit(one)
    while not is_over({name for name, events in told.items() if isinstance(events[-1], Finished | Failed)}):
        for event in loop.step():
            told[event.request_id].append(event)
    return told


def tokens(events: list[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, Token)]


def test_a_guided_request_draws_what_its_guide_allows_and_its_neighbour_what_it_likes() -> None:
    made = Made()
    told = run(Loop(ToyEngine(), guide=made), request("a", 3, "5 6 7"), request("b", 3))
    assert tokens(told["a"]) == [5, 6, 7]
    assert tokens(told["b"]) == answer(PROMPT, 3)
    assert made.guides[0].taken == [5, 6]  # nothing comes after the last
    assert made.guides[0].lefts == [3, 2, 1]


def test_tokens_that_are_given_are_not_the_guides() -> None:
    made = Made()
    told = run(Loop(ToyEngine(), guide=made), request("a", 4, "5 6", forced=(90, 91)))
    assert tokens(told["a"]) == [90, 91, 5, 6]
    assert made.guides[0].taken == [5]


@pytest.mark.parametrize(("breaks", "said"), [("!", "the grammar is broken"), ("?", "MemoryError: a library's own")])
def test_a_guide_that_breaks_ends_its_request_alone(breaks: str, said: str) -> None:
    told = run(Loop(ToyEngine(), guide=Made()), request("a", 3, f"5 {breaks}"), request("b", 3))
    *drawn, last = told["a"]
    assert tokens(drawn) == [5]
    assert isinstance(last, Failed)
    assert said in last.message
    assert tokens(told["b"]) == answer(PROMPT, 3)
    assert isinstance(told["b"][-1], Finished)


def test_a_grammar_that_cannot_be_used_ends_its_request_before_it_begins() -> None:
    told = run(Loop(ToyEngine(), guide=Made()), request("a", 3, "x"), request("b", 3))
    (failed,) = told["a"]
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.param) == ("InvalidRequest", "grammar")
    assert tokens(told["b"]) == answer(PROMPT, 3)
    (failed,) = Loop(ToyEngine()).submit(request("a", 3, "5"))
    assert isinstance(failed, Failed)
    assert failed.kind == "Unsupported"


class Gate(Made):
    """Makes no guide before it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    def __call__(self, grammar: str) -> Guide:
        assert self.opened.wait(10)
        return super().__call__(grammar)


def test_while_a_grammar_is_read_the_others_go_on() -> None:
    gate = Gate()
    loop = Loop(ToyEngine(), guide=gate)
    assert loop.submit(request("slow", 2, "5 6")) == []
    told = run_until(loop, lambda done: "b" in done, request("b", 4))
    assert tokens(told["b"]) == answer(PROMPT, 4)
    assert told["slow"] == []
    assert loop.stats().waiting == 1
    gate.opened.set()
    assert tokens(run_until(loop, lambda done: "slow" in done)["slow"]) == [5, 6]


def test_a_request_whose_grammar_is_still_read_can_be_cancelled() -> None:
    gate = Gate()
    loop = Loop(ToyEngine(), guide=gate)
    loop.submit(request("first", 2, "5 6"))
    loop.submit(request("second", 2, "7 8"), request("third", 2, "9 9"))
    (ended,) = loop.cancel("first")
    assert isinstance(ended, Finished)
    assert ended.reason == "abort"
    loop.cancel("second")
    gate.opened.set()
    told = run_until(loop, lambda done: "third" in done)
    assert tokens(told["third"]) == [9, 9]
    assert told["first"] == told["second"] == []
    assert loop.idle


def test_a_prompt_waits_for_the_grammars_of_all_that_share_it() -> None:
    gate = Gate()
    loop = Loop(ToyEngine(), guide=gate)
    loop.submit(request("free", 2), request("slow", 2, "5 6"))
    assert [loop.step() for _ in range(5)] == [[]] * 5
    assert loop.stats().waiting == 2
    gate.opened.set()
    told = run_until(loop, lambda done: len(done) == 2)
    assert tokens(told["free"]) == answer(PROMPT, 2)
    assert tokens(told["slow"]) == [5, 6]


def test_an_id_may_come_again_while_its_first_grammar_is_still_read() -> None:
    gate = Gate()
    loop = Loop(ToyEngine(), guide=gate)
    loop.submit(request("a", 2, "5 6"))
    loop.cancel("a")
    loop.submit(request("a", 2, "7 8"))
    gate.opened.set()
    assert tokens(run_until(loop, lambda done: "a" in done)["a"]) == [7, 8]


def test_an_id_may_come_again_without_its_grammar() -> None:
    loop = Loop(ToyEngine(), guide=Made())
    assert tokens(run(loop, request("a", 2, "5 6"))["a"]) == [5, 6]
    loop.submit(request("a", 2, "5 6"))
    loop.cancel("a")
    assert tokens(run(loop, request("a", 2))["a"]) == answer(PROMPT, 2)


def test_a_text_that_was_cut_short_says_so() -> None:
    made = Made()
    loop = Loop(ToyEngine(), guide=made)
    asked = Request("a", PROMPT, SamplingParams(max_tokens=9, grammar="5 6"), eos=(6,))
    events = loop.submit(asked)
    while not made.guides:
        events += loop.step()
    made.guides[0].is_cut = True
    while not loop.idle:
        events += loop.step()
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason == "length"
