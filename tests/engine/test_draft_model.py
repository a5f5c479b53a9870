"""A draft model changes how many tokens a step gives, never which: held against the same requests without it.

In bfloat16, whose products are our own: those round a row alike beside any other rows.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringkv.base.events import Finished, Token, Usage
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.scheduler.loop import Loop
from tests.engine import tiny
from tests.engine.test_golden import GEMMA3, GEMMA3_ROPES

KV = tiny.choice("snapstream", budget=40, recent=8)
RING = KVChoice("streaming", budget=48, sinks=4)
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "seed": 3},
    {"temperature": 0.7, "seed": 9, "top_p": 0.95},
]
NAMES = ["greedy", "temperature", "top_p"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    models = {
        "target": ("Llama", {}),
        "other": ("Llama", {"num_hidden_layers": 1, "hidden_size": 192}),
        "packed": ("Llama", {"vocab_size": 224}),
        "windows": ("Gemma3", GEMMA3 | {"vocab_size": 199, "rope_parameters": GEMMA3_ROPES}),
    }
    return tiny.save_all(tmp_path_factory, models)


def engine(target: Path, drafter: Path | None = None, drafts: int = 3, known: int = 1, **changes: Any) -> LocalEngine:
    """Return an engine whose draft model has rings of 48 entries. known: tokens that it may be fed beside another."""
    own = None
    if drafter:
        own = tiny.config(
            drafter,
            kv=RING,
            capacity=48,
            prompt_tokens=48,
            dtype="bfloat16",
            speculate=known,
            slots=changes.get("slots", 3),
        )
    usual = {"dtype": "bfloat16", "speculate": drafts if drafter else 0}
    return build(tiny.config(target, drafter=own, **usual | changes))


@pytest.fixture(scope="module")
def plain(folders: dict[str, Path]) -> LocalEngine:
    return engine(folders["target"])


@pytest.fixture(scope="module")
def alike(folders: dict[str, Path]) -> LocalEngine:
    return engine(folders["target"], folders["target"])


@pytest.fixture(scope="module")
def unlike(folders: dict[str, Path]) -> LocalEngine:
    return engine(folders["target"], folders["other"], known=0)


def requests(tokens: int = 80, prompt: int = 60, **changes: Any) -> list[Request]:
    kinds = [{**kind, "ignore_eos": True, "max_tokens": tokens, **changes} for kind in SAMPLING]
    return [tiny.request(tiny.prompt(prompt + i, i), f"r{i}", KV, **kind) for i, kind in enumerate(kinds)]


def serve(engine: LocalEngine, *asked: Request) -> dict[str, tuple[list[int], Usage]]:
    """Serve different requests at once: the tokens and the usage of each."""
    loop, tokens, usage = Loop(engine), {one.id: list[int]() for one in asked}, dict[str, Usage]()
    events = [event for one in asked for event in loop.submit(one)]
    while not loop.idle:
        events += loop.step()
    for event in events:
        if isinstance(event, Token):
            tokens[event.request_id].append(event.token)
        elif isinstance(event, Finished):
            usage[event.request_id] = event.usage
    return {name: (tokens[name], usage[name]) for name in tokens}


@pytest.mark.parametrize("at", range(len(SAMPLING)), ids=NAMES)
def test_a_draft_model_equal_to_the_target_has_every_draft_accepted(
    plain: LocalEngine, alike: LocalEngine, at: int
) -> None:
    """Until the target evicts: then the two read different entries."""
    asked = replace(requests(tokens=12, prompt=8)[at], kv=None)
    ((want, _),) = serve(plain, asked).values()
    ((tokens, usage),) = serve(alike, asked).values()
    assert tokens == want
    assert usage.drafted_tokens == usage.accepted_tokens > 0


@pytest.mark.parametrize("at", range(len(SAMPLING)), ids=NAMES)
def test_tokens_are_the_same_with_any_draft_model_over_rings_that_wrap(
    plain: LocalEngine, alike: LocalEngine, unlike: LocalEngine, at: int
) -> None:
    asked = requests()[at]
    ((want, _),) = serve(plain, asked).values()
    for drafting in (alike, unlike):
        ((tokens, usage),) = serve(drafting, asked).values()
        assert tokens == want
        assert usage.drafted_tokens > 0


def test_requests_beside_each_other_have_their_own_drafts(plain: LocalEngine, alike: LocalEngine) -> None:
    """The third takes none, because of its penalty."""
    asked = requests()
    asked[2] = replace(asked[2], sampling=replace(asked[2].sampling, repetition_penalty=1.2))
    want, got = serve(plain, *asked), serve(alike, *asked)
    assert {name: tokens for name, (tokens, _) in got.items()} == {name: tokens for name, (tokens, _) in want.items()}
    assert [got[one.id][1].drafted_tokens > 0 for one in asked] == [True, True, False]


def test_a_slot_is_drafted_for_again_after_a_cancelled_request(plain: LocalEngine, alike: LocalEngine) -> None:
    first, second, _ = requests()
    loop = Loop(alike)
    loop.submit(first)
    for _ in range(12):
        loop.step()
    loop.cancel(first.id)
    want, got = serve(plain, second), serve(alike, second)
    assert got[second.id][0] == want[second.id][0]
    assert got[second.id][1].drafted_tokens > 0


def test_a_draft_model_that_is_far_behind_begins_again(plain: LocalEngine, alike: LocalEngine) -> None:
    """Drafts are asked for after 100 steps without."""
    asked = requests(tokens=160)[0]
    ((want, _),) = serve(plain, asked).values()
    tiny.enter(alike, asked)
    tokens, drafted = list[int](), 0
    while len(tokens) < 160:
        tokens += [each.token for each in alike.sample().read()[0]]
        drafted += sum(alike.forward({0: 3} if len(tokens) > 100 else {}).values())
    alike.release(0)
    assert tokens[:160] == want
    assert drafted > 0


def test_windows_of_either_model_change_no_token(folders: dict[str, Path]) -> None:
    asked = replace(requests()[2], kv=None)
    plain, drafting = engine(folders["windows"]), engine(folders["windows"], folders["windows"])
    ((want, _),) = serve(plain, asked).values()
    ((tokens, usage),) = serve(drafting, asked).values()
    assert tokens == want
    assert usage.accepted_tokens > 0


def test_the_draft_model_rests_while_a_step_has_too_many_rows_for_drafts(folders: dict[str, Path]) -> None:
    """With seven drafts, a step has up to four slots; five requests run, and the last one goes on alone."""
    asked = [
        replace(each, id=f"{at}", sampling=replace(each.sampling, max_tokens=80 if at == 4 else 30))
        for at, each in enumerate(requests(prompt=20) + requests(prompt=30)[:2])
    ]
    plain, drafting = engine(folders["packed"], slots=5), engine(folders["packed"], folders["packed"], 7, slots=5)
    want, got = serve(plain, *asked), serve(drafting, *asked)
    assert {name: tokens for name, (tokens, _) in got.items()} == {name: tokens for name, (tokens, _) in want.items()}
    assert [got[f"{at}"][1].drafted_tokens > 0 for at in (0, 4)] == [False, True]


def test_no_draft_ends_a_request(folders: dict[str, Path], plain: LocalEngine, alike: LocalEngine) -> None:
    """The request ends at a token that the target samples 20 tokens on."""
    asked = requests(tokens=60, prompt=20)[1]
    ((known, _),) = serve(plain, asked).values()
    stop = next(token for at, token in enumerate(known) if at > 20 and token not in known[:at])
    ends = replace(asked, sampling=replace(asked.sampling, stop_token_ids=(stop,), ignore_eos=False))
    assert serve(alike, ends)[asked.id][0] == serve(plain, ends)[asked.id][0] == known[: known.index(stop) + 1]
