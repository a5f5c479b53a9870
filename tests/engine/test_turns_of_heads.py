"""Conversations that continue from slots that heads divide, in transformers' attention under a mask for each head.

L layers, H key-value heads, T tokens of a conversation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from ringkv.base.engine import prefill
from ringkv.base.errors import InvalidRequest
from ringkv.base.events import Event, Finished, Token
from ringkv.base.kv import HeadBudgets, KVChoice
from ringkv.base.request import Request
from ringkv.base.selectors import TOVA, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress.kvzip import LEAD
from ringkv.cache.compress.select import VOTES
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.engine.passes import Passes
from ringkv.scheduler.loop import Loop
from tests.engine import kept, tiny

LAYERS, HEADS = 3, 2
STORE = 8 * 2**20
KV = tiny.choice("snapstream", budget=40, recent=8, turns="continue")
SHARES = ((1.0, 3.0), (0.0, 2.0), (4.0, 0.5))
DIVIDED: list[HeadBudgets] = ["global", "profile"]
TURNS = [(100, 13), (9, 21), (24, 12)]  # new tokens, and those of the answer


class Turn(NamedTuple):
    """A turn that was served: tokens that were known, places of its logits in the conversation, and the logits."""

    known: int
    positions: range
    logits: Tensor


class Talk:
    """A conversation, with the tokens that each slot's entries hold, and so which tokens each token sees."""

    def __init__(self, engine: LocalEngine, kv: KVChoice, total: int = 256) -> None:
        self.engine, self.kv = engine, kv
        self.tokens: list[int] = []
        self.held: list[list[set[int]]] = [[set() for _ in range(HEADS)] for _ in range(LAYERS)]
        self.seen = torch.zeros(LAYERS, HEADS, total, total, dtype=torch.bool)

    def turn(self, new: Sequence[int], answer: Sequence[int]) -> Turn:
        """Serve a turn whose answer is forced, and leave the slot."""
        engine, fed = self.engine, [*self.tokens, *new]
        request = replace(tiny.request(fed, kv=self.kv), trace=True)
        engine.admit(request)
        known = engine.begin(request, 0).tokens
        prefill(engine, request)
        for position in range(known, len(fed)):
            self._see(position, range(known, position + 1))
        first = engine.lanes.logits(0).clone()
        (layout,), sources = engine.compress(0, self.kv), engine.kept(0, self.kv)
        engine.insert(0, 0, request)
        self._decode(layout, sources, len(fed), len(answer))
        self.tokens = [*fed, *answer]
        logits = torch.cat((first[None], tiny.decode(engine, len(answer), forced=list(answer))[1][1:]))
        engine.leave(0, tuple(self.tokens))
        engine.release(0)
        return Turn(known, range(len(fed) - 1, len(self.tokens) - 1), logits)

    def _see(self, position: int, more: range) -> None:
        for layer, heads in enumerate(self.held):
            for head, own in enumerate(heads):
                self.seen[layer, head, position, [*own, *more]] = True

    def _decode(self, layout: Any, sources: Sequence[np.ndarray], n: int, count: int) -> None:
        for layer, head in ((layer, head) for layer in range(LAYERS) for head in range(HEADS)):
            tokens = [token for token in sources[layer][head].tolist() if token >= 0]
            assert len(set(tokens)) == len(tokens)
            more, entries = len(tokens) - layout.live(n), dict(enumerate(tokens))
            for position in range(n, n + count):
                entries[layout.entry(position) + more] = position
                self.seen[layer, head, position, [*entries.values()]] = True
            self.held[layer][head] = {*entries.values()}
        assert sum(len(own) for heads in self.held for own in heads) == LAYERS * HEADS * layout.live(n + count)

    def wanted(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Tensor:
        """transformers' logits [T, V] if each token sees what it saw."""
        n = len(self.tokens)
        model = kept.model(folder, "Llama", list(self.seen[:, :, :n, :n]), monkeypatch)
        return kept.logits(model, self.tokens)

    @property
    def counts(self) -> Tensor:
        return torch.tensor([[len(own) for own in heads] for heads in self.held])


def started(folder: Path, kv: KVChoice, **changes: Any) -> LocalEngine:
    shares = SHARES if kv.heads == "profile" else ()
    return build(tiny.config(folder, kv=kv, store_bytes=STORE, head_shares=shares, **changes))


def served(talk: Talk, turns: Sequence[tuple[int, int]]) -> Iterator[Turn]:
    for seed, (new, answer) in enumerate(turns):
        yield talk.turn(tiny.prompt(new, 2 * seed), tiny.prompt(answer, 2 * seed + 1))


def check(talk: Talk, found: Sequence[Turn], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = talk.wanted(folder, monkeypatch)
    assert all(after.known == before.positions[-1] + 2 for before, after in pairwise(found))
    for turn in found:
        torch.testing.assert_close(turn.logits, want[list(turn.positions)], atol=2e-5, rtol=1e-4)


SELECTORS: list[Selector] = [SnapKV(window=8), KeyDiff(), KVzip()]


@pytest.mark.parametrize("heads", DIVIDED)
@pytest.mark.parametrize("select", SELECTORS, ids=["snapkv", "keydiff", "kvzip"])
def test_three_turns_give_transformers_logits_with_a_mask_for_each_head(
    llama_dir: Path, heads: HeadBudgets, select: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = replace(KV, heads=heads, select=select)
    talk = Talk(started(llama_dir, kv), kv)
    found = list(served(talk, TURNS))
    check(talk, found, llama_dir, monkeypatch)
    assert talk.counts.unique().numel() > 1
    assert int(talk.counts.sum()) == LAYERS * HEADS * 40
    assert min(own for heads in talk.held for one in heads for own in one) == 0  # a sink


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "snapkv", "recent": 20, "select": SnapKV(window=8)},
        {"policy": "snapkv", "recent": 20, "budget": 70},
        {"elastic": False},
        {"protect": ((0, 12),)},
        {"policy": "streaming", "select": SnapKV(window=8)},
        {"policy": "streaming"},
        {"policy": "streaming", "protect": ((0, 12),)},
        {"policy": "full", "budget": None},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_policies_and_settings_continue(
    llama_dir: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = replace(KV, **{"heads": "global", "select": KVzip(), **changes})
    talk = Talk(started(llama_dir, kv, capacity=256), kv)
    check(talk, list(served(talk, [(100, 13), (9, 12), (24, 12)])), llama_dir, monkeypatch)
    if kv.protect:
        assert all({*range(12)} <= own for heads in talk.held for own in heads)


@pytest.mark.parametrize("select", [SnapKV(window=8), KVzip()])
def test_an_answer_that_is_told_otherwise_continues_from_where_it_differs(
    llama_dir: Path, select: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer tokens come than were dropped, so nothing is selected and heads keep what they have; then a third turn."""
    kv = replace(KV, heads="global", select=select)
    talk = Talk(started(llama_dir, kv), kv)
    first, *_ = served(talk, [(100, 13)])
    counts = talk.counts
    del talk.tokens[-6:]
    talk.seen[:, :, 107:] = False
    talk.held = [[own - {*range(107, 113)} for own in heads] for heads in talk.held]
    second = talk.turn(tiny.prompt(4, 8), tiny.prompt(1, 9))
    assert second.known == 107
    assert torch.equal(talk.counts, counts - 1)
    third = talk.turn(tiny.prompt(30, 10), tiny.prompt(20, 11))
    want = talk.wanted(llama_dir, monkeypatch)
    for turn in (second, third):
        torch.testing.assert_close(turn.logits, want[list(turn.positions)], atol=2e-5, rtol=1e-4)
    assert third.known == 112
    assert first.known == 0


@pytest.mark.parametrize("heads", ["equal", "global"])
def test_with_room_for_the_conversation_its_tokens_are_those_of_the_full_cache(
    llama_dir: Path, heads: HeadBudgets
) -> None:
    """Bit for bit, as with equal heads."""
    logits = []
    for kv in (KVChoice("full", turns="continue"), KVChoice(budget=256, heads=heads, select=KVzip(), turns="continue")):
        talk = Talk(started(llama_dir, replace(kv, heads=heads), capacity=256), kv)
        logits.append(torch.cat([turn.logits for turn in served(talk, TURNS)]))
    assert torch.equal(*logits)


@pytest.mark.parametrize("cut", [8, 16])
def test_a_later_turn_has_the_same_logits_in_chunks_of_any_size(llama_dir: Path, cut: int) -> None:
    kv = replace(KV, heads="global")
    logits = []
    for chunk in (64, cut):
        talk = Talk(started(llama_dir, kv, chunk=chunk), kv)
        logits.append(torch.cat([turn.logits for turn in served(talk, [(100, 13), (70, 5)])]))
    torch.testing.assert_close(*logits, atol=2e-5, rtol=1e-4)


Votes = Callable[..., Tensor]


@pytest.mark.parametrize("heads", ["equal", "global"])
def test_kvzip_votes_once_for_each_token_of_a_conversation(
    llama_dir: Path, heads: HeadBudgets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that a turn has left keep their votes. Only tokens after these are repeated, at true positions."""
    votes: list[Tensor] = []
    pieces: list[Any] = []
    vote, run = VOTES[KVzip], Passes.run

    def noted(prompt: Any, low: int, high: int, selector: Selector) -> Tensor:
        found = torch.stack([of_layer for of_layer in vote(prompt, low, high, selector) if of_layer is not None])
        if (low, high) == (0, prompt.keys.shape[2]):
            votes.append(found)
        return found

    def ran(self: Passes, some: Any, fed: Any = None) -> Tensor:
        pieces.extend(some)
        return run(self, some, fed)

    monkeypatch.setitem(VOTES, KVzip, noted)  # type: ignore[arg-type]
    monkeypatch.setattr(Passes, "run", ran)
    kv = replace(KV, heads=heads, select=KVzip())
    talk = Talk(started(llama_dir, kv), kv)
    talk.turn(tiny.prompt(100), tiny.prompt(13, 1))
    assert [piece.start for piece in pieces[-7:]] == [*range(100, 212, 16)]  # a repetition of 100 tokens
    before = [[*heads] for heads in talk.held]
    pieces.clear()
    talk.turn(tiny.prompt(9, 2), tiny.prompt(2, 3))
    first, second = votes
    for layer, kept_of in enumerate(before):
        for head, own in enumerate(kept_of):
            old = sorted(token for token in own if token < 113 - 8)
            end = second.shape[2] - 9 - 8
            assert torch.equal(second[layer, head, end - len(old) : end], first[layer, head, old])
    longest = max(len(own) for heads in before for own in heads)
    again = [piece for piece in pieces if piece.start >= longest + 9]
    assert sum((tuple(piece.tokens) for piece in again), ()) == tuple(talk.tokens[113 - 8 - LEAD : 122])
    assert {piece.gap for piece in again} == {113 - longest}


def test_kvzip_reads_again_what_has_no_votes_and_was_evicted(llama_dir: Path) -> None:
    """A short prompt whose answer has wrapped its ring: nothing was selected yet. The turn before it is known."""
    kv = replace(KV, heads="global", select=KVzip())
    talk = Talk(started(llama_dir, kv), kv)
    assert [turn.known for turn in served(talk, [(30, 5), (3, 30)])] == [0, 35]
    asked = tiny.request([*talk.tokens, 5], kv=kv)
    assert talk.engine.begin(asked, 0).tokens == 35


def test_conversations_take_the_bytes_of_their_entries(llama_dir: Path) -> None:
    """Not of the longest head for each."""
    kv = replace(KV, heads="global")
    talk = Talk(started(llama_dir, kv), kv)
    _ = [*served(talk, TURNS[:1])]
    pool = talk.engine._turns._conversations._pool
    ((_, row),) = [(name, row) for name, row in pool._rows.items() if row.groups[-1].stop != 64 * 12 * 32 * 4]
    assert row.groups[-1].stop == LAYERS * HEADS * 40 * 32 * 2 * 4
    assert talk.counts.max() > 40


def test_a_dropped_conversation_and_a_prompt_after_one_are_read_as_ever(llama_dir: Path) -> None:
    """The lane's heads begin together again."""
    kv = replace(KV, heads="global")
    engine = started(llama_dir, kv)
    want = tiny.stage(engine, tiny.request(tiny.prompt(60, 9), kv=kv)).clone()
    _ = [*served(Talk(engine, kv), TURNS)]
    fresh = replace(tiny.request(tiny.prompt(60, 9), kv=kv), salt="another")
    assert torch.equal(tiny.stage(engine, fresh), want)


def test_a_selector_that_joins_heads_is_refused_by_name(llama_dir: Path) -> None:
    engine = started(llama_dir, replace(KV, heads="global"))
    with pytest.raises(InvalidRequest, match=r"global .* tova") as refused:
        engine.admit(tiny.request(tiny.prompt(50), kv=replace(KV, heads="global", select=TOVA())))
    assert refused.value.param == "kv_turns"
    engine.admit(tiny.request(tiny.prompt(50), kv=replace(KV, select=TOVA())))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("graphs", ["off", pytest.param("compiled", marks=pytest.mark.slow)])
def test_turns_have_the_same_tokens_alone_and_beside_others(tmp_path: Path, graphs: str) -> None:
    """In the kernels of bfloat16, in passes that they share with other prompts and with slots."""
    tiny.save(tmp_path, "Llama", vocab_size=224, max_position_embeddings=1024)
    kv = replace(KV, heads="global", select=KVzip(), budget=64)
    engine = started(tmp_path, kv, dtype="bfloat16", graphs=graphs, slots=4, lanes=3, chunk=128, prompt_tokens=640)
    assert engine.limits.rides

    def turns(together: bool) -> list[list[int]]:
        prompts, found = {str(n): tiny.prompt(n, n) for n in (150, 201, 90)}, []
        for turn in range(3):
            asked = [tiny.request(tokens, name, kv, max_tokens=9, seed=turn) for name, tokens in prompts.items()]
            asked = [replace(one, salt=f"{together} {one.id}") for one in asked]
            for some in [asked] if together else [[one] for one in asked]:
                for name, (tokens, cached) in conversed(engine, some).items():
                    found.append(tokens)
                    assert cached == (len(prompts[name]) - 21 - 1 if turn else 0)  # the last token has no entry
                    prompts[name] = [*prompts[name], *tokens, *tiny.prompt(21, turn)]
        return found

    assert sorted(turns(together=True)) == sorted(turns(together=False))


def conversed(engine: LocalEngine, asked: Sequence[Request]) -> dict[str, tuple[list[int], int]]:
    """Serve requests together: the tokens of each, and how many of its prompt were cached."""
    loop, cached = Loop(engine), {}
    tokens: dict[str, list[int]] = {one.id: [] for one in asked}
    events: list[Event] = [event for one in asked for event in loop.submit(one)]
    while not loop.idle:
        events += loop.step()
    for event in events:
        if isinstance(event, Token):
            tokens[event.request_id].append(event.token)
        if isinstance(event, Finished):
            cached[event.request_id] = event.usage.cached_tokens
    return {name: (tokens[name], cached[name]) for name in tokens}
