"""Grammars in the loop, on an engine whose tokens are computed by hand."""

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


class ListGuide:
    """Allows the tokens that its grammar lists, "5 6", one after another; "!" and "?" in the list raise errors."""

    def __init__(self, grammar: str) -> None:
        if not grammar[0].isdigit():
            raise InvalidRequest(f"{grammar!r} does not begin with a token", "grammar")
        self.words = grammar.split()
        self.taken: list[int] = []
        self.lefts: list[int] = []
        self.is_cut = False

    def allowed(self, left: int) -> bytes:
        self.lefts.append(left)
        word = self.words[len(self.taken)]
        if word == "!":
            raise RequestFailed("the grammar is broken")
        if word == "?":
            raise MemoryError("a library's own")
        return (1 << int(word)).to_bytes(16, "little")

    def take(self, token: int) -> None:
        self.taken.append(token)


class GuideFactory:
    """Makes guides and keeps a list of them."""

    def __init__(self) -> None:
        self.guides: list[ListGuide] = []

    def __call__(self, grammar: str) -> Guide:
        self.guides.append(ListGuide(grammar))
        return self.guides[-1]


def request(name: str, count: int, grammar: str = "", forced: tuple[int, ...] = ()) -> Request:
    return Request(name, PROMPT, SamplingParams(max_tokens=count, grammar=grammar), forced=forced)


def run(loop: Loop, *requests: Request) -> dict[str, list[Event]]:
    events = [event for one in requests for event in loop.submit(one)]
    while not loop.idle:
        events += loop.step()
    return {one.id: [event for event in events if event.request_id == one.id] for one in requests}


def run_until(loop: Loop, is_over: Callable[[set[str]], bool], *requests: Request) -> dict[str, list[Event]]:
    """Return each request's events until `is_over` holds for the requests that ended."""
    events: dict[str, list[Event]] = defaultdict(list)
    for one in requests:
        loop.submit(one)
    while not is_over({name for name, own in events.items() if isinstance(own[-1], Finished | Failed)}):
        for event in loop.step():
            events[event.request_id].append(event)
    return events


def tokens(events: list[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, Token)]


def test_a_guided_request_samples_what_its_guide_allows_and_others_are_free() -> None:
    factory = GuideFactory()
    events = run(Loop(ToyEngine(), guide=factory), request("a", 3, "5 6 7"), request("b", 3))
    assert tokens(events["a"]) == [5, 6, 7]
    assert tokens(events["b"]) == answer(PROMPT, 3)
    assert factory.guides[0].taken == [5, 6]  # the last token ends the request
    assert factory.guides[0].lefts == [3, 2, 1]


def test_forced_tokens_do_not_advance_the_guide() -> None:
    factory = GuideFactory()
    events = run(Loop(ToyEngine(), guide=factory), request("a", 4, "5 6", forced=(90, 91)))
    assert tokens(events["a"]) == [90, 91, 5, 6]
    assert factory.guides[0].taken == [5]


@pytest.mark.parametrize(("error", "message"), [("!", "the grammar is broken"), ("?", "MemoryError: a library's own")])
def test_a_guide_that_raises_fails_only_its_request(error: str, message: str) -> None:
    events = run(Loop(ToyEngine(), guide=GuideFactory()), request("a", 3, f"5 {error}"), request("b", 3))
    *sampled, last = events["a"]
    assert tokens(sampled) == [5]
    assert isinstance(last, Failed)
    assert message in last.message
    assert tokens(events["b"]) == answer(PROMPT, 3)
    assert isinstance(events["b"][-1], Finished)


def test_an_unusable_grammar_fails_its_request_before_prefill() -> None:
    events = run(Loop(ToyEngine(), guide=GuideFactory()), request("a", 3, "x"), request("b", 3))
    (failed,) = events["a"]
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.param) == ("InvalidRequest", "grammar")
    assert tokens(events["b"]) == answer(PROMPT, 3)
    (failed,) = Loop(ToyEngine()).submit(request("a", 3, "5"))
    assert isinstance(failed, Failed)
    assert failed.kind == "Unsupported"


class GatedFactory(GuideFactory):
    """Blocks until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    def __call__(self, grammar: str) -> Guide:
        assert self.opened.wait(10)
        return super().__call__(grammar)


def test_other_requests_run_while_a_grammar_is_compiled() -> None:
    gate = GatedFactory()
    loop = Loop(ToyEngine(), guide=gate)
    assert loop.submit(request("slow", 2, "5 6")) == []
    events = run_until(loop, lambda done: "b" in done, request("b", 4))
    assert tokens(events["b"]) == answer(PROMPT, 4)
    assert events["slow"] == []
    assert loop.stats().waiting == 1
    gate.opened.set()
    assert tokens(run_until(loop, lambda done: "slow" in done)["slow"]) == [5, 6]


def test_a_request_can_be_cancelled_while_its_grammar_is_compiled() -> None:
    gate = GatedFactory()
    loop = Loop(ToyEngine(), guide=gate)
    loop.submit(request("first", 2, "5 6"))
    loop.submit(request("second", 2, "7 8"), request("third", 2, "9 9"))
    (ended,) = loop.cancel("first")
    assert isinstance(ended, Finished)
    assert ended.reason == "abort"
    loop.cancel("second")
    gate.opened.set()
    events = run_until(loop, lambda done: "third" in done)
    assert tokens(events["third"]) == [9, 9]
    assert events["first"] == events["second"] == []
    assert loop.idle


def test_a_prompt_waits_for_the_grammars_of_all_its_requests() -> None:
    gate = GatedFactory()
    loop = Loop(ToyEngine(), guide=gate)
    loop.submit(request("free", 2), request("slow", 2, "5 6"))
    assert [loop.step() for _ in range(5)] == [[]] * 5
    assert loop.stats().waiting == 2
    gate.opened.set()
    events = run_until(loop, lambda done: len(done) == 2)
    assert tokens(events["free"]) == answer(PROMPT, 2)
    assert tokens(events["slow"]) == [5, 6]


def test_an_id_can_be_reused_while_its_first_grammar_is_compiled() -> None:
    gate = GatedFactory()
    loop = Loop(ToyEngine(), guide=gate)
    loop.submit(request("a", 2, "5 6"))
    loop.cancel("a")
    loop.submit(request("a", 2, "7 8"))
    gate.opened.set()
    assert tokens(run_until(loop, lambda done: "a" in done)["a"]) == [7, 8]


def test_an_id_can_be_reused_without_a_grammar() -> None:
    loop = Loop(ToyEngine(), guide=GuideFactory())
    assert tokens(run(loop, request("a", 2, "5 6"))["a"]) == [5, 6]
    loop.submit(request("a", 2, "5 6"))
    loop.cancel("a")
    assert tokens(run(loop, request("a", 2))["a"]) == answer(PROMPT, 2)


def test_a_text_that_its_guide_closed_early_ends_with_length() -> None:
    factory = GuideFactory()
    loop = Loop(ToyEngine(), guide=factory)
    events = loop.submit(Request("a", PROMPT, SamplingParams(max_tokens=9, grammar="5 6"), eos=(6,)))
    while not factory.guides:
        events += loop.step()
    factory.guides[0].is_cut = True
    while not loop.idle:
        events += loop.step()
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason == "length"
