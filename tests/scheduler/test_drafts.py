"""Drafts: the lookup, and answers with several tokens per step, which equal answers with one token per step."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.job import NGRAM_SIZES, PromptLookup
from ringkv.scheduler.loop import Loop
from tests import toy

LONG = 150  # a toy's answer repeats itself after 48 tokens


def search(tokens: list[int], limit: int) -> list[int]:
    """Return the expected draft, found by searching backwards."""
    for size in NGRAM_SIZES:
        end = tokens[-size:]
        for start in range(len(tokens) - 1 - size, -1, -1):
            if len(end) == size and tokens[start : start + size] == end:
                return tokens[start + size : start + size + limit]
    return []


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 7))
def test_a_draft_is_what_last_followed_the_longest_repeated_end(tokens: list[int], limit: int) -> None:
    assert PromptLookup(tokens).draft(limit) == search(tokens, limit)


def test_a_text_without_repetition_has_no_drafts() -> None:
    assert PromptLookup(range(100)).draft(3) == []


def request(name: str, prompt: tuple[int, ...] = (5, 6, 7), **changes: object) -> Request:
    return Request(name, prompt, SamplingParams(**{"max_tokens": LONG, "ignore_eos": True} | changes))


def serve(loop: Loop) -> list[Event]:
    events = []
    while not loop.idle:
        events += loop.step()
    return events


def tokens(events: list[Event], name: str) -> list[int]:
    return [event.token for event in events if isinstance(event, Token) and event.request_id == name]


def drafting(drafts: int = 3, **changes: int) -> toy.ToyEngine:
    return toy.ToyEngine(toy.limits(drafts=drafts, **changes))


@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_answers_are_the_same_and_take_fewer_steps(drafts: int) -> None:
    engine = drafting(drafts)
    loop = Loop(engine)
    prompts = {f"r{i}": tuple(Random(i).choices(range(1, 97), k=5 + i)) for i in range(5)}
    for name, prompt in prompts.items():
        assert not loop.submit(request(name, prompt))
    events = serve(loop)
    for name, prompt in prompts.items():
        assert tokens(events, name) == toy.answer(prompt, LONG)
    assert engine.drafted > 0
    assert engine.log.count("forward") < 0.85 * 5 * LONG / 2  # two slots


def test_usage_counts_drafted_and_accepted_tokens() -> None:
    engine = drafting()
    loop = Loop(engine)
    loop.submit(request("a"))
    (finished,) = (event for event in serve(loop) if isinstance(event, Finished))
    assert finished.usage.completion_tokens == LONG
    assert finished.usage.drafted_tokens == engine.drafted
    steps = engine.log.count("sample")
    assert steps + finished.usage.accepted_tokens == LONG


def test_a_stop_token_is_never_drafted_so_no_token_is_fed_after_it() -> None:
    engine = drafting()
    loop = Loop(engine)
    prompt = (5, 6, 7)
    answer = toy.answer(prompt, LONG)
    stop = answer[next(i for i in range(60, LONG) if i % 4 == 1)]
    forced = Request("a", prompt, SamplingParams(max_tokens=LONG, stop_token_ids=(stop,)), forced=tuple(answer[:55]))
    loop.submit(forced)
    events = serve(loop)
    end = next(i for i in range(55, LONG) if answer[i] == stop)
    assert tokens(events, "a") == answer[: end + 1]


def test_a_conversation_is_saved_with_exactly_the_tokens_that_were_fed() -> None:
    """The toy asserts that `leave` gets the tokens of the slot."""
    engine = drafting()
    engine.default_kv = KVChoice("streaming", turns="continue")
    loop = Loop(engine)
    loop.submit(request("a"))
    serve(loop)
    assert "leave" in engine.log


@pytest.mark.parametrize(
    ("sampling", "takes"),
    [
        ({"top_p": 0.9, "temperature": 1.0}, True),
        ({"logprobs": 2}, True),
        ({"min_tokens": 3}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"logit_bias": {3: 1.0}}, False),
    ],
)
def test_a_request_has_drafts_unless_its_logits_depend_on_sampled_tokens(sampling: dict[str, Any], takes: bool) -> None:
    engine = drafting()
    loop = Loop(engine)
    loop.submit(request("a", **sampling))
    assert tokens(serve(loop), "a") == toy.answer((5, 6, 7), LONG)
    assert (engine.drafted > 0) == takes


def test_a_request_that_fails_in_the_middle_of_a_run_ends_alone() -> None:
    engine = drafting()
    loop = Loop(engine)
    loop.submit(request("nan", (1, 1, 1)))
    loop.submit(request("ok"))
    events = serve(loop)
    assert [event.request_id for event in events if isinstance(event, Failed)] == ["nan"]
    assert tokens(events, "ok") == toy.answer((5, 6, 7), LONG)


def test_cancelling_between_a_pass_with_drafts_and_its_tokens_does_not_affect_others() -> None:
    engine = drafting()
    loop = Loop(engine)
    loop.submit(request("a", (9, 9, 9)))
    loop.submit(request("b"))
    events: list[Event] = []
    while not engine.drafts:
        events += loop.step()
    events += loop.cancel("a")
    events += serve(loop)
    assert tokens(events, "b") == toy.answer((5, 6, 7), LONG)
