"""What the engine promises of a request: its tokens depend on nothing but itself, in memory that never grows."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ringkv.base.engine import chunks
from ringkv.base.errors import BadToken, BudgetTooSmall, EmptyPrompt, InvalidRequest, PromptTooLong
from ringkv.base.kv import KVChoice
from ringkv.base.messages import Submit
from ringkv.base.sampling import SamplingParams
from ringkv.base.selectors import TOVA, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress.selection import compress
from ringkv.engine import lanes
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.wire.link import Codec
from tests.engine import tiny


def prompt(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 199), k=n)


@pytest.mark.parametrize("policy", ["streaming", "snapkv", "snapstream"])
def test_a_budget_that_holds_everything_gives_the_full_caches_logits_bit_for_bit(
    engine: LocalEngine, policy: str
) -> None:
    tokens = prompt(20)
    results = []
    for kv in (KVChoice("full"), KVChoice(policy, sinks=4, recent=16, select=SnapKV(window=8))):
        tiny.enter(engine, tiny.request(tokens, kv=kv), slot=1)
        results.append(tiny.decode(engine, 30, slot=1)[1])
    assert torch.equal(*results)


def test_an_evicting_budget_changes_the_logits(engine: LocalEngine) -> None:
    """So that the test above can fail."""
    tokens = prompt(60)
    results = []
    for kv in (KVChoice("full"), KVChoice(budget=24, sinks=4, recent=8, select=SnapKV(window=8))):
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
    codec = Codec(Submit)
    (received,) = codec.decode(codec.encode(Submit((one,)))).requests
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
        for plane in engine.batch.bodies[0].planes:
            plane[:, 0] = float("nan")
    engine.sample()
    engine.forward()
    draw = engine.sample().read()
    assert draw[0][0].token is None
    assert draw[1][0].token == alone[1]

    tiny.enter(engine, well, slot=0)  # the slot is whole again for the next
    assert tiny.decode(engine, 20, slot=0)[0] == alone


def test_a_staged_prompt_can_be_inserted_twice_and_compressed_again(engine: LocalEngine) -> None:
    select = SnapKV(window=8)
    wide, narrow = KVChoice(sinks=4, recent=16, select=select), KVChoice(budget=32, sinks=4, recent=8, select=select)
    asked = tiny.request(prompt(120), kv=wide)
    tiny.stage(engine, asked)
    (layout,), (other,) = engine.compress(0, wide), engine.compress(0, narrow)
    assert engine.compress(0, wide) == (layout,)
    assert (layout.capacity, other.capacity) == (64, 32)
    for slot in (0, 2):
        engine.insert(0, slot, asked)
    tokens = _decode_all(engine, 20)
    assert tokens[0] == tokens[2]


def test_an_equal_choice_is_compressed_once_for_all_that_share_the_prompt(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[KVChoice] = []
    monkeypatch.setattr(
        lanes, "compress", lambda lane, choice, capacity: scored.append(choice) or compress(lane, choice, capacity)
    )
    wide, narrow = KVChoice(sinks=4, recent=16), KVChoice(budget=32, sinks=4, recent=8)
    for tokens in (prompt(120), prompt(120, 1)):
        tiny.stage(engine, tiny.request(tokens))
        for choice in (wide, narrow, replace(wide), replace(narrow)):
            engine.compress(0, choice)
    assert scored == [wide, narrow] * 2


def test_a_lane_has_nothing_to_compress_until_its_next_prompt_is_prefilled_whole(engine: LocalEngine) -> None:
    tiny.stage(engine, tiny.request(prompt(120)))
    engine.begin(tiny.request(prompt(30, 1)), 0)
    with pytest.raises(AssertionError, match="not prefilled"):
        engine.compress(0, engine.default_kv)


def test_an_exported_request_goes_on_in_another_engine_as_if_it_had_stayed(
    engine: LocalEngine, llama_dir: Path
) -> None:
    sampling = {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.2, "frequency_penalty": 0.3}
    asked = tiny.request(prompt(120), **sampling)
    tiny.enter(engine, asked, slot=1)
    tiny.decode(engine, 40, slot=1)  # the ring has wrapped
    packet = engine.export(1)
    stayed = tiny.decode(engine, 30, slot=1)
    other = build(tiny.config(llama_dir))
    other.restore(packet, 2)
    went = tiny.decode(other, 30, slot=2)
    assert went[0] == stayed[0]
    assert torch.equal(went[1], stayed[1])


def test_a_packet_of_other_shapes_is_refused(engine: LocalEngine) -> None:
    tiny.enter(engine, tiny.request(prompt(120)))
    packet = engine.export(0)
    with pytest.raises(InvalidRequest, match="bytes"):
        engine.restore(packet._replace(entries=packet.entries[:-4]), 1)


def test_answers_that_share_a_prompt_and_a_compression_are_those_given_alone(engine: LocalEngine) -> None:
    choices = [None, KVChoice(budget=32, recent=8, select=SnapKV(window=8)), KVChoice("full"), None]
    asked = [
        tiny.request(prompt(50), f"{n}", kv, temperature=0.9, seed=n, max_tokens=12) for n, kv in enumerate(choices)
    ]
    together = tiny.serve(engine, *asked)
    assert together == {one.id: tiny.serve(engine, one)[one.id] for one in asked}
    assert len(set(map(tuple, together.values()))) == len(asked)


def test_a_prompt_read_again_has_the_keys_and_queries_of_the_doubled_prompt(engine: LocalEngine) -> None:
    tokens = prompt(100)
    tiny.stage(engine, tiny.request(tokens))
    keys, (queries,) = engine.lanes.staging.bodies[0].planes[0], engine.lanes.staging.queries
    window = queries.clone()
    assert (
        engine.lanes.view(0, 0, 8).repeat_limit == 144
    )  # 18 pieces of 8 tokens, the window; the last ends at 100 + 17 * 8 + 16 of 256
    with torch.inference_mode():
        pieces = [(torch.stack(q), own.clone()) for q, own in engine.lanes.view(0, 0, 1).repeat(30, 50)]
    assert [q.shape[3] for q, _ in pieces] == [8, 8, 4]
    assert torch.equal(queries, window)

    for (q, own), done in zip(pieces, (8, 16, 20), strict=True):
        doubled = tiny.request([*tokens, *tokens[30 : 30 + done]])
        tiny.stage(engine, doubled)
        torch.testing.assert_close(own, keys[:, 0, :, 100 : 100 + done], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(q, queries[:, 0, :, :, -q.shape[3] :], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("select", [SnapKV(window=8), TOVA(), KeyDiff(), KVzip()])
def test_every_selector_keeps_as_many_and_leaves_the_staged_prompt_as_it_is(
    engine: LocalEngine, select: Selector
) -> None:
    tiny.stage(engine, tiny.request(prompt(150)))
    staging = [
        plane.clone() for plane in (*engine.lanes.staging.bodies[0].read(0, slice(150)), *engine.lanes.staging.queries)
    ]
    usual, chosen = (
        np.stack(engine.kept(0, engine.default_kv)),
        np.stack(engine.kept(0, replace(engine.default_kv, select=select))),
    )
    assert chosen.shape == usual.shape
    assert (np.diff(np.sort(chosen, -1)) > 0).all()
    after = (*engine.lanes.staging.bodies[0].read(0, slice(150)), *engine.lanes.staging.queries)
    assert all(torch.equal(was, now) for was, now in zip(staging, after, strict=True))


def test_protected_tokens_are_kept_by_every_head(engine: LocalEngine) -> None:
    tiny.stage(engine, tiny.request(prompt(150)))
    for policy in ("streaming", "snapstream"):
        choice = replace(engine.default_kv, policy=policy, protect=((60, 75), (145, 148)))
        held = np.stack(engine.kept(0, choice))
        for token in (*range(60, 75), 145, 147, 149):
            assert (held == token).any(-1).all()


def test_the_kept_set_is_that_of_the_prompts_own_keys_and_queries(llama_dir: Path) -> None:
    """Chunked and one-shot prefill stage the same keys, and keep the same tokens."""
    tokens = prompt(200, 9)
    kept: list[np.ndarray] = []
    keys: list[torch.Tensor] = []
    for chunk in (16, 256):
        engine = build(tiny.config(llama_dir, chunk=chunk))
        tiny.enter(engine, tiny.request(tokens), slot=1)
        kept.append(np.stack(engine.kept(0, engine.default_kv)))
        keys.append(engine.batch.bodies[0].planes[0][:, 1].clone())
        for layer in range(3):
            dense = engine.lanes.staging.bodies[0].planes[0][layer, 0]
            for head in range(2):
                assert torch.equal(keys[-1][layer, head], dense[head, kept[-1][layer, head]])
    np.testing.assert_array_equal(*kept)
    torch.testing.assert_close(*keys, atol=1e-4, rtol=1e-4)


def test_memory_held_equals_the_formula_and_never_grows(engine: LocalEngine) -> None:
    # 3 layers, 2 heads of 32 float32 numbers, keys and values; 3 slots of 64 entries; one lane of 256 tokens, and its
    # window of 8 queries of 6 heads
    entry = 3 * 2 * 32 * 4 * 2
    assert engine.limits.entry_bytes == entry
    assert engine.limits.held_bytes == 3 * 64 * entry + 256 * entry + 3 * 6 * 8 * 32 * 4
    tiny.enter(engine, tiny.request(prompt(256)))
    planes = engine.batch.bodies[0].planes
    where = [plane.data_ptr() for plane in planes]
    tiny.decode(engine, 200)
    assert [plane.data_ptr() for plane in engine.batch.bodies[0].planes] == where
    assert sum(plane.nbytes for plane in planes) == 3 * 64 * entry


@pytest.mark.parametrize(
    ("tokens", "kv", "error", "words"),
    [
        ([], None, EmptyPrompt, "empty"),
        ([5] * 257, None, PromptTooLong, "257 tokens and the engine takes 256;.* larger prompt_tokens$"),
        ([5, 199], None, BadToken, "token id 199 is outside the vocabulary of 199"),
        ([5, -1], None, BadToken, "token id -1"),
        ([5], KVChoice(budget=65), InvalidRequest, "over the 64 entries"),
        ([5], KVChoice(budget=8, recent=16, select=SnapKV(window=8)), BudgetTooSmall, "raise it to 20"),
        ([5] * 99, KVChoice(select=SnapKV(window=9), recent=4), InvalidRequest, "kv_window 9 is over the 8"),
        ([5] * 100, KVChoice("full", select=SnapKV(window=8)), PromptTooLong, "100"),
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
    with pytest.raises(BadToken, match="199") as refused:
        engine.admit(asked)
    assert refused.value.param in sampling


def test_the_tokens_of_a_prompt_that_requests_share_are_checked_once(engine: LocalEngine) -> None:
    class Counted(tuple[int, ...]):
        reads = 0

        def __iter__(self) -> Iterator[int]:
            type(self).reads += 1
            return super().__iter__()

    first, *others = (replace(tiny.request([]), id=f"{n}", tokens=Counted(prompt(50))) for n in range(5))
    engine.admit(first)
    reads = Counted.reads
    assert reads > 0
    for other in others:
        engine.admit(other)
    assert Counted.reads == reads
    with pytest.raises(BadToken):
        engine.admit(tiny.request([*prompt(50), 199]))
    with pytest.raises(BadToken):
        engine.admit(tiny.request([*prompt(50), 199]))


def test_a_prompt_that_kvzip_cannot_repeat_is_refused_before_its_prefill(engine: LocalEngine, llama_dir: Path) -> None:
    kv = KVChoice(sinks=4, recent=16, select=KVzip())
    refusal = r"takes 232 tokens here, and the prompt has 233; .* start with a larger prompt_tokens$"
    with pytest.raises(PromptTooLong, match=refusal):
        engine.admit(tiny.request(prompt(233), kv=kv))
    longest = tiny.request(prompt(232), kv=kv)
    engine.admit(longest)
    tiny.stage(engine, longest)
    assert engine.compress(0, kv)[0].selected > 0
    engine.admit(tiny.request(prompt(233), kv=replace(kv, policy="streaming")))  # does not vote
    compacted = build(tiny.config(llama_dir, prefill_workspace=128))
    with pytest.raises(PromptTooLong, match=r"start with a larger prefill_workspace$"):
        compacted.admit(tiny.request(prompt(127), kv=kv))


def test_prefill_takes_chunks_in_any_interleaving_with_decode(engine: LocalEngine) -> None:
    runner, late = tiny.request(prompt(40, 1)), tiny.request(prompt(100, 2))
    tiny.enter(engine, late, slot=1)
    alone, _ = tiny.decode(engine, 10, slot=1)
    engine.release(1)
    tiny.enter(engine, runner, slot=0)
    for work in chunks(late, 0, engine.begin(late, 0).tokens, 16):
        engine.prefill([work])
        tiny.decode(engine, 1)
    engine.insert(0, 1, late)
    assert tiny.decode(engine, 10, slot=1)[0] == alone


def _decode_all(engine: LocalEngine, steps: int) -> list[list[int | None]]:
    """Every slot's tokens."""
    rows = []
    for _ in range(steps):
        rows.append([one.token for (one,) in engine.sample().read()])
        engine.forward()
    return [list(column) for column in zip(*rows, strict=True)]
