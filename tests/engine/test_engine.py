"""What the engine promises of a request: its tokens depend on nothing but itself, in memory that never grows."""

import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from ringkv.base.codec import decode, encode
from ringkv.base.engine import chunks
from ringkv.base.errors import BadToken, BudgetTooSmall, EmptyPrompt, InvalidRequest, PromptTooLong
from ringkv.base.kv import SELECTORS, KVChoice
from ringkv.base.messages import Submit
from ringkv.base.sampling import SamplingParams
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny


def prompt(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 199), k=n)


@pytest.mark.parametrize("policy", ["streaming", "snapkv", "snapstream"])
def test_a_budget_that_holds_everything_gives_the_full_caches_logits_bit_for_bit(
    engine: LocalEngine, policy: str
) -> None:
    tokens = prompt(20)
    results = []
    for kv in (KVChoice("full"), KVChoice(policy, sinks=4, recent=16, window=8)):
        tiny.enter(engine, tiny.request(tokens, kv=kv), slot=1)
        results.append(tiny.decode(engine, 30, slot=1)[1])
    assert torch.equal(*results)


def test_an_evicting_budget_changes_the_logits(engine: LocalEngine) -> None:
    """So that the test above can fail."""
    tokens = prompt(60)
    results = []
    for kv in (KVChoice("full"), KVChoice(budget=24, sinks=4, recent=8, window=8)):
        tiny.enter(engine, tiny.request(tokens, kv=kv), slot=1)
        results.append(tiny.decode(engine, 4, slot=1)[1])
    assert torch.equal(results[0][0], results[1][0])  # the prompt's own logits see no cache policy
    assert (results[0][1:] - results[1][1:]).abs().max() > 1e-3


def test_a_request_gives_the_same_tokens_alone_and_beside_any_neighbours_in_any_slot(engine: LocalEngine) -> None:
    asked = [tiny.request(prompt(n, n), temperature=t, seed=n) for n, t in ((150, 0.0), (33, 0.9), (5, 1.3))]
    alone = []
    for one in asked:
        tiny.enter(engine, one, slot=0)
        alone.append(tiny.decode(engine, 80, slot=0))
        engine.release(0)
    for order in permutations(range(3)):
        for slot, who in enumerate(order):
            tiny.enter(engine, asked[who], slot)
        together = _decode_all(engine, 80)
        for slot, who in enumerate(order):
            assert together[slot] == alone[who][0]


def test_a_request_that_enters_late_gives_the_same_tokens(engine: LocalEngine) -> None:
    late = tiny.request(prompt(90, 4))
    tiny.enter(engine, late, slot=2)
    alone, logits = tiny.decode(engine, 40, slot=2)
    engine.release(2)
    tiny.enter(engine, tiny.request(prompt(140, 5)), slot=0)
    tiny.decode(engine, 33)
    tiny.enter(engine, late, slot=2)
    again, logits_again = tiny.decode(engine, 40, slot=2)
    assert again == alone
    assert torch.equal(logits, logits_again)


def test_without_a_seed_equal_requests_draw_different_tokens(engine: LocalEngine) -> None:
    for slot in range(3):
        tiny.enter(engine, tiny.request(prompt(9), temperature=1.5), slot)
    first, second, third = _decode_all(engine, 30)
    assert first != second != third != first


def test_a_request_without_a_seed_gives_the_same_tokens_again_on_another_engine(llama_dir: Path) -> None:
    """In another slot and as it comes out of a message to an engine process, too."""
    one = tiny.request(prompt(20), temperature=1.0)
    (received,) = decode(encode(Submit((one,)))).requests  # type: ignore[union-attr]
    tokens = []
    for slot, asked in enumerate((one, received)):
        engine = build(tiny.config(llama_dir))
        tiny.enter(engine, asked, slot)
        tokens.append(tiny.decode(engine, 30, slot)[0])
    assert tokens[0] == tokens[1]


def test_nan_in_one_slot_fails_it_alone_and_leaves_no_trace(engine: LocalEngine) -> None:
    sick, well = tiny.request(prompt(50, 1)), tiny.request(prompt(70, 2))
    tiny.enter(engine, well, slot=1)
    alone, _ = tiny.decode(engine, 20, slot=1)

    tiny.enter(engine, well, slot=1)
    tiny.enter(engine, sick, slot=0)
    with torch.inference_mode():
        for plane in engine._planes:
            plane[:, 0] = float("nan")
    engine.sample()
    engine.forward()
    draw = engine.sample().read()
    assert draw[0].token is None
    assert draw[1].token == alone[1]

    tiny.enter(engine, well, slot=0)  # the slot is whole again for the next
    assert tiny.decode(engine, 20, slot=0)[0] == alone


def test_a_prefix_can_be_inserted_twice_and_a_staged_prompt_compressed_again(engine: LocalEngine) -> None:
    asked = tiny.request(prompt(120))
    staged = tiny.stage(engine, asked)
    wide, narrow = KVChoice(sinks=4, recent=16, window=8), KVChoice(budget=32, sinks=4, recent=8, window=8)
    prefix = engine.compress(staged, wide)
    other = engine.compress(staged, narrow)
    again = engine.compress(staged, wide)
    assert torch.equal(prefix.source, again.source)
    assert (prefix.layout.capacity, other.layout.capacity) == (64, 32)
    for slot in (0, 2):
        engine.insert(prefix, slot, asked)
    tokens = _decode_all(engine, 20)
    assert tokens[0] == tokens[2]


def test_answers_that_share_a_prompt_and_a_compression_are_those_given_alone(engine: LocalEngine) -> None:
    choices = [None, KVChoice(budget=32, recent=8, window=8), KVChoice("full"), None]
    asked = [
        tiny.request(prompt(50), f"{n}", kv, temperature=0.9, seed=n, max_tokens=12) for n, kv in enumerate(choices)
    ]
    together = tiny.serve(engine, *asked)
    assert together == {one.id: tiny.serve(engine, one)[one.id] for one in asked}
    assert len(set(map(tuple, together.values()))) == len(asked)


def test_what_was_staged_is_not_used_once_its_lane_took_another_prompt(engine: LocalEngine) -> None:
    asked = tiny.request(prompt(120))
    staged = tiny.stage(engine, asked)
    prefix = engine.compress(staged, engine.default_kv)
    tiny.stage(engine, tiny.request(prompt(30, 3)))
    with pytest.raises(AssertionError, match="another prompt"):
        engine.compress(staged, engine.default_kv)
    with pytest.raises(AssertionError, match="another prompt"):
        engine.insert(prefix, 0, asked)


def test_a_prompt_read_again_has_the_keys_and_queries_of_the_doubled_prompt(engine: LocalEngine) -> None:
    tokens = prompt(100)
    staged = tiny.stage(engine, tiny.request(tokens))
    window = engine._staging.window.clone()
    assert engine.room(staged) == 144  # 18 pieces of 8 tokens, the window; the last ends at 100 + 17 * 8 + 16 of 256
    pieces = [(q.clone(), own.clone()) for q, own in engine.read_again(staged, 30, 50)]
    assert [q.shape[3] for q, _ in pieces] == [8, 8, 4]
    assert torch.equal(engine._staging.window, window)

    for (q, own), done in zip(pieces, (8, 16, 20), strict=True):
        doubled = tiny.request([*tokens, *tokens[30 : 30 + done]])
        tiny.stage(engine, doubled)
        torch.testing.assert_close(own, engine._staging.keys[:, 0, :, 100 : 100 + done], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(q, engine._staging.window[:, 0, :, :, -q.shape[3] :], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("select", SELECTORS)
def test_every_selector_keeps_as_many_and_leaves_the_staged_prompt_as_it_is(engine: LocalEngine, select: str) -> None:
    staged = tiny.stage(engine, tiny.request(prompt(150)))
    usual = engine.compress(staged, engine.default_kv).source
    chosen = engine.compress(staged, replace(engine.default_kv, select=select))
    assert chosen.source.shape == usual.shape
    assert (chosen.source.sort(-1).values.diff(dim=-1) > 0).all()
    assert torch.equal(engine.compress(staged, engine.default_kv).source, usual)


def test_protected_tokens_are_kept_by_every_head(engine: LocalEngine) -> None:
    staged = tiny.stage(engine, tiny.request(prompt(150)))
    for policy in ("streaming", "snapstream"):
        choice = replace(engine.default_kv, policy=policy, protect=((60, 75), (145, 148)))
        held = engine.compress(staged, choice).source
        for token in (*range(60, 75), 145, 147, 149):
            assert (held == token).any(-1).all()


def test_the_kept_set_is_that_of_the_prompts_own_keys_and_queries(llama_dir: Path) -> None:
    """Chunked and one-shot prefill stage the same keys, and keep the same tokens."""
    tokens = prompt(200, 9)
    kept: list[torch.Tensor] = []
    keys: list[torch.Tensor] = []
    for chunk in (16, 256):
        engine = build(tiny.config(llama_dir, chunk=chunk))
        staged = tiny.stage(engine, tiny.request(tokens))
        prefix = engine.compress(staged, engine.default_kv)
        engine.insert(prefix, 1, tiny.request(tokens))
        kept.append(prefix.source)
        keys.append(engine._planes[0][:, 1].clone())
        for layer in range(3):
            dense = engine._staging.keys[layer, 0]
            for head in range(2):
                assert torch.equal(keys[-1][layer, head], dense[head, prefix.source[layer, head]])
    assert torch.equal(*kept)
    torch.testing.assert_close(*keys, atol=1e-4, rtol=1e-4)


def test_memory_held_equals_the_formula_and_never_grows(engine: LocalEngine) -> None:
    # 3 layers, 2 heads of 32 float32 numbers, keys and values; 3 slots of 64 entries; one lane of 256 tokens, and its
    # window of 8 queries of 6 heads
    entry = 3 * 2 * 32 * 4 * 2
    assert engine.limits.entry_bytes == entry
    assert engine.limits.held_bytes == 3 * 64 * entry + 256 * entry + 3 * 6 * 8 * 32 * 4
    tiny.enter(engine, tiny.request(prompt(256)))
    where = [plane.data_ptr() for plane in engine._planes]
    tiny.decode(engine, 200)
    assert [plane.data_ptr() for plane in engine._planes] == where
    assert sum(plane.nbytes for plane in engine._planes) == 3 * 64 * entry


@pytest.mark.parametrize(
    ("tokens", "kv", "error", "words"),
    [
        ([], None, EmptyPrompt, "empty"),
        ([5] * 257, None, PromptTooLong, "257 tokens and the staging workspace takes 256"),
        ([5, 199], None, BadToken, "token id 199 is outside the vocabulary of 199"),
        ([5, -1], None, BadToken, "token id -1"),
        ([5], KVChoice(budget=65), InvalidRequest, "over the 64 entries"),
        ([5], KVChoice(budget=8, recent=16, window=8), BudgetTooSmall, "raise it to 20"),
        ([5] * 99, KVChoice(window=9, recent=4), InvalidRequest, "kv_window 9 is over the 8"),
        ([5] * 100, KVChoice("full", window=8), PromptTooLong, "100"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_before_any_work(
    engine: LocalEngine, tokens: list[int], kv: KVChoice | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        engine.admit(tiny.request(tokens, kv=kv))


@pytest.mark.parametrize(
    "sampling", [{"logit_bias": {199: 1.0}}, {"stop_token_ids": (3, 199)}, {"stop_token_ids": (-1,)}]
)
def test_a_token_outside_the_vocabulary_is_refused_wherever_it_stands(
    engine: LocalEngine, sampling: dict[str, Any]
) -> None:
    asked = replace(tiny.request(prompt(5)), sampling=SamplingParams(**sampling))
    with pytest.raises(BadToken, match="outside the vocabulary of 199") as refused:
        engine.admit(asked)
    assert refused.value.param in sampling


def test_prefill_takes_chunks_in_any_interleaving_with_decode(engine: LocalEngine) -> None:
    runner, late = tiny.request(prompt(40, 1)), tiny.request(prompt(100, 2))
    tiny.enter(engine, late, slot=1)
    alone, _ = tiny.decode(engine, 10, slot=1)
    engine.release(1)
    tiny.enter(engine, runner, slot=0)
    for work in chunks(late, 0, engine.begin(late, 0), 16):
        staged = engine.prefill(work).staged
        tiny.decode(engine, 1)
    engine.insert(engine.compress(staged, engine.default_kv), 1, late)
    assert tiny.decode(engine, 10, slot=1)[0] == alone


def _decode_all(engine: LocalEngine, steps: int) -> list[list[int | None]]:
    """Every slot's tokens."""
    rows = []
    for _ in range(steps):
        rows.append([one.token for one in engine.sample().read()])
        engine.forward()
    return [list(column) for column in zip(*rows, strict=True)]
