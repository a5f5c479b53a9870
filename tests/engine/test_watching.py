"""Reviewed slots: in transformers' attention under masks, beside other requests, and without eviction."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import HISTORY
from ringkv.base.errors import BudgetTooSmall, InvalidRequest
from ringkv.base.events import Event, Finished, Token
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.cache.watching.ledger import Ledger
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.machine.compiler import missing_for_graphs
from ringkv.scheduler.loop import Loop
from tests.engine import kept, tiny
from tests.engine.test_golden import GEMMA3, GEMMA3_ROPES
from tests.engine.test_poisoned import poison_all
from tests.engine.test_shared import saved
from tests.refusals import refusal

LAYERS, HEADS, GROUPS, WIDTH, CAPACITY, REVIEW = 3, 2, 3, 32, 64, 16
LEADS = 2, 1, 0  # how many tokens before the slot is due each layer is scored
KV = tiny.choice("scissorhands", review=REVIEW)


@pytest.fixture(scope="module")
def watched(llama_dir: Path) -> LocalEngine:
    return started(llama_dir)


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of 5 layers, and the same with as many caches as the Llama has layers."""
    whole, folder = (tmp_path_factory.mktemp(name) for name in ("whole", "sharing"))
    tiny.save(whole, "Llama", num_hidden_layers=5)
    return whole, saved(whole, folder, 2)


def started(llama_dir: Path, **changes: Any) -> LocalEngine:
    return build(tiny.config(llama_dir, **{"kv": KV, **changes}))


def ledger(engine: LocalEngine) -> Ledger:
    noted = engine.batch.bodies[0].noted
    assert noted is not None
    return noted


def asked(n: int, policy: str = "scissorhands", name: str = "r", **changes: Any) -> Request:
    return tiny.request(tiny.prompt(n, n), name, replace(KV, policy=policy, **changes), max_tokens=90, ignore_eos=True)


def decoded(engine: LocalEngine, one: Request, steps: int, slot: int = 1) -> Tensor:
    tiny.enter(engine, one, slot)
    found = tiny.decode(engine, steps, slot, forced=tiny.prompt(steps, 9))[1]
    engine.release(slot)
    return found


@pytest.mark.parametrize("n", [30, 45, 100])
def test_logits_are_transformers_with_a_mask_for_each_head_that_hides_what_reviews_evicted(
    watched: LocalEngine, llama_dir: Path, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_with_masks(watched, llama_dir, n, monkeypatch)


def test_layers_that_share_a_cache_attend_to_what_reviews_of_it_left(
    sharing: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = sharing
    compare_with_masks(started(folder), whole, 45, monkeypatch, (0, 0, 2, 2, 4))


def compare_with_masks(
    watched: LocalEngine, folder: Path, n: int, monkeypatch: pytest.MonkeyPatch, source: Sequence[int] = (0, 1, 2)
) -> None:
    """Compare with transformers' model, each of whose layers reads the cache of a source."""
    total = n + 90
    tokens = tiny.prompt(total)
    tiny.enter(watched, tiny.request(tokens[:n], kv=KV), slot=1)
    plan, positions = watched.compress(0, KV)[0], ledger(watched).positions[:, 1]
    seen = torch.ones(total, total, dtype=torch.bool).tril().expand(LAYERS, HEADS, -1, -1).clone()
    held = [[set(row[: plan.live(n)].tolist()) for row in layer] for layer in positions]
    logits, evicted = [], 0
    for at in range(n, total):
        logits.append(watched.batch.logits[1].clone())
        watched.sample({1: tokens[at]})
        watched.forward()
        if plan.is_due(at) and plan.live(at) == CAPACITY:
            now = [
                [{*row[: CAPACITY - REVIEW - lead].tolist(), *range(at - lead, at)} for row in layer]
                for layer, lead in zip(positions, LEADS, strict=True)
            ]
            assert all(new < old for layer in zip(now, held, strict=True) for new, old in zip(*layer, strict=True))
            assert {len(row) for layer in now for row in layer} == {CAPACITY - REVIEW}
            held, evicted = now, evicted + 1
        for layer, rows in enumerate(held):
            for head, row in enumerate(rows):
                row.add(at)
                assert len(row) == plan.live(at + 1) <= CAPACITY
                seen[layer, head, at] = torch.zeros(total, dtype=torch.bool).index_fill_(0, torch.tensor([*row]), True)
    assert evicted == plan.wrap_count(total) >= 3
    assert len({frozenset(row) for rows in held for row in rows}) > 1
    rows = [sorted({*source}).index(layer) for layer in source]
    want = kept.logits(kept.model(folder, "Llama", [seen[row] for row in rows], monkeypatch, source), tokens)
    torch.testing.assert_close(torch.stack(logits), want[n - 1 : total - 1], atol=2e-5, rtol=2e-5)
    watched.release(1)


def test_an_answer_that_fits_has_the_bits_of_a_full_cache_and_the_next_token_does_not(
    watched: LocalEngine, llama_dir: Path
) -> None:
    whole = build(tiny.config(llama_dir, kv=tiny.choice("full"), capacity=128))
    full = decoded(whole, asked(30, "full", budget=128), 60)
    found = decoded(watched, asked(30), 60)
    fits = CAPACITY - 30 + 1  # the logits after the last token that fits
    assert torch.equal(found[:fits], full[:fits])
    assert not torch.equal(found[fits], full[fits])


def test_other_policies_have_the_bits_of_slots_that_keep_no_queries(watched: LocalEngine, llama_dir: Path) -> None:
    usual = build(tiny.config(llama_dir))
    for policy in ("snapstream", "streaming"):
        assert torch.equal(decoded(watched, asked(150, policy), 80), decoded(usual, asked(150, policy), 80))


def served(engine: LocalEngine, *requests: Request) -> tuple[dict[str, list[int]], dict[str, Finished]]:
    """Serve requests together, with prefill and decoding in one pass: the tokens and the end of each."""
    loop, tokens, ends = Loop(engine), {one.id: [] for one in requests}, {}
    events: list[Event] = [event for one in requests for event in loop.submit(one)]
    while not loop.idle:
        events += loop.step()
    for event in events:
        if isinstance(event, Token):
            tokens[event.request_id].append(event.token)
        elif isinstance(event, Finished):
            ends[event.request_id] = event
    return tokens, ends


def test_requests_get_the_same_tokens_alone_and_beside_others_and_count_their_reviews(watched: LocalEngine) -> None:
    requests = [
        asked(150, name="a"),
        asked(33, name="b", recent=4),
        asked(90, name="c", review=8),
        asked(70, "snapstream", "d"),
        asked(31, name="e", budget=50),
    ]
    together, ends = served(watched, *requests)
    for one in requests:
        assert served(watched, one)[0][one.id] == together[one.id]
    usage = ends["a"].usage.kv
    assert (usage.capacity, usage.kept) == (CAPACITY, CAPACITY - REVIEW)
    assert usage.ring_wraps == (90 - 1 - 1) // REVIEW  # the last token is not fed; a review comes before the next token
    assert usage.evicted == 150 + 89 - CAPACITY + REVIEW - 89 % REVIEW


@pytest.mark.slow
@pytest.mark.skipif(missing_for_graphs() is not None, reason=str(missing_for_graphs()))
def test_compiled_graphs_keep_the_same_queries(watched: LocalEngine, llama_dir: Path) -> None:
    requests = [asked(150, name="a"), asked(33, name="b"), asked(90, name="c", review=8)]
    assert served(started(llama_dir, graphs="compiled"), *requests)[0] == served(watched, *requests)[0]


def test_nothing_of_an_earlier_request_is_read(watched: LocalEngine) -> None:
    want = decoded(watched, asked(150), 60)
    poison_all(watched)
    with torch.inference_mode():
        for tensor in ledger(watched):
            tensor.fill_(torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)
    assert torch.equal(decoded(watched, asked(150), 60), want)


def test_a_request_that_leaves_after_a_layers_turn_leaves_nothing_for_the_next_one(watched: LocalEngine) -> None:
    want = decoded(watched, asked(150), 60)
    for steps in range(REVIEW - 1, REVIEW + 3):  # the slot is due after 16 tokens
        decoded(watched, asked(100), steps)
        assert torch.equal(decoded(watched, asked(150), 60), want)


def test_layers_beside_those_with_a_sliding_window_take_turns_among_themselves(tmp_path: Path) -> None:
    """The layers 1 and 3 of 4 are reviewed, the first of them a token before the slot is due."""
    tiny.save(tmp_path, "Gemma3", **GEMMA3, rope_parameters=GEMMA3_ROPES)
    engine = started(tmp_path)
    (positions,) = (body.noted.positions for body in engine.batch.bodies if body.noted)
    kept, fed = CAPACITY - REVIEW, list(range(100, 100 + REVIEW))
    tiny.enter(engine, asked(100), slot=1)
    tiny.decode(engine, REVIEW, slot=1)  # the last step came after the first layer's turn
    assert positions[0, 1, :, kept : CAPACITY - 1].tolist() == [fed[:-1]] * HEADS
    assert not positions[1, 1, :, kept:].any()
    tiny.decode(engine, 1, slot=1)
    for layer, lead in enumerate((1, 0)):
        for row in positions[layer, 1, :, : kept - lead].tolist():
            assert set(fed[: REVIEW - lead]) <= set(row)
            assert len(set(row)) == kept - lead
    engine.release(1)
    one, other = asked(100, name="a"), asked(40, name="b")
    assert served(engine, one, other)[0]["a"] == served(engine, one)[0]["a"]


@pytest.mark.parametrize("workspace", [0, 128])
def test_a_slot_notes_tokens_and_not_the_entries_that_staging_had_for_them(llama_dir: Path, workspace: int) -> None:
    engine, found = started(llama_dir, lanes=2, prefill_workspace=workspace), []
    for lane in range(2):
        one = asked(200, name=str(lane))
        tiny.stage(engine, one, lane)
        engine.insert(lane, 1, one)
        live, tokens = CAPACITY - REVIEW, torch.from_numpy(np.stack(engine.kept(lane, KV)))
        assert torch.equal(ledger(engine).positions[:, 1, :, :live].long(), tokens)
        assert tokens.max() == 199
        found.append(tiny.decode(engine, 60, 1, forced=tiny.prompt(60, 9))[1])
        engine.release(1)
    assert torch.equal(*found)


def test_sinks_recent_and_protected_tokens_stay_in_every_head(watched: LocalEngine) -> None:
    tiny.enter(watched, asked(100, protect=((50, 60),)), slot=1)
    tiny.decode(watched, 81, slot=1)  # the last step came after a review
    for layer, lead in zip(ledger(watched).positions[:, 1], LEADS, strict=True):
        positions = layer[:, : CAPACITY - REVIEW - lead]
        assert positions.diff(dim=-1).min() > 0
        for row in positions.tolist():
            assert {*range(4), *range(50, 60), *range(180 - 16, 180 - lead)} <= set(row)
    watched.release(1)


def test_a_slot_has_more_bytes_for_its_queries_and_what_reviews_note(watched: LocalEngine, llama_dir: Path) -> None:
    usual, item = build(tiny.config(llama_dir)), 4
    queries = LAYERS * (REVIEW + 1) * HEADS * GROUPS * WIDTH * item
    noted = LAYERS * HEADS * CAPACITY * (4 + HISTORY)
    assert watched.limits.slot_bytes == usual.limits.slot_bytes + queries + noted
    planned = sum(group.in_slots.slot_bytes(CAPACITY, item) for group in watched.lanes.groups)
    assert watched.limits.slot_bytes == planned


def test_what_watching_cannot_do_is_refused(watched: LocalEngine, llama_dir: Path) -> None:
    usual = build(tiny.config(llama_dir))
    with pytest.raises(InvalidRequest, match="no queries") as refused:
        usual.admit(asked(50))
    assert refused.value.param == "kv_policy"
    with refusal("kv_review", "17.* 16 queries"):
        watched.admit(asked(50, review=17))
    with refusal("kv_turns", "scissorhands"):
        watched.admit(asked(50, turns="continue"))
    with refusal("kv_budget", "raise it to 37", BudgetTooSmall):
        watched.admit(asked(50, budget=36))
    with pytest.raises(BudgetTooSmall, match="kv_protect names 29 tokens"):
        watched.admit(asked(40, protect=((4, 33),)))
    with refusal("kv_review", "256.* 255"):
        KVChoice("scissorhands", review=256)
