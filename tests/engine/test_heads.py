"""Heads that divide a slot's entries: in transformers' attention under masks, in memory, and beside other requests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ringkv.base.cache_spec import PlaneFormat, SlotFormat
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import HeadBudgets, KVChoice
from ringkv.base.selectors import KeyDiff, Selector, SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import kept, tiny
from tests.engine.test_poisoned import poison_all

KV = tiny.choice("snapstream", budget=40, recent=8)
LAYERS, HEADS = 3, 2
NEAR: dict[PlaneFormat, float] = {"int8": 0.01, "int4": 0.1}  # error of logits over their spread


@pytest.fixture(scope="module")
def divided(llama_dir: Path) -> LocalEngine:
    return started(llama_dir)


def started(llama_dir: Path, **changes: Any) -> LocalEngine:
    return build(tiny.config(llama_dir, kv=replace(KV, heads="global"), **changes))


def asked(n: int, heads: HeadBudgets = "global", select: Selector = SnapKV(window=8)) -> Any:  # noqa: B008 - frozen
    return tiny.request(tiny.prompt(n, n), kv=replace(KV, heads=heads, select=select))


def test_logits_are_transformers_with_a_mask_for_each_head_while_the_ring_wraps(
    llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, tokens = started(llama_dir), tiny.prompt(150)
    tiny.enter(engine, tiny.request(tokens[:100]), slot=1)
    found = tiny.decode(engine, 50, slot=1, forced=tokens[100:])[1]
    visible = kept.visible(engine, 100, len(tokens))
    want = kept.logits(kept.model(llama_dir, "Llama", visible, monkeypatch), tokens)
    torch.testing.assert_close(found, want[99:149], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("select", [SnapKV(window=8), KeyDiff()])
def test_entries_add_up_to_those_of_equal_heads(divided: LocalEngine, select: Selector) -> None:
    counts = torch.from_numpy(tiny.kept(divided, asked(150, select=select)) >= 0).sum(-1)
    assert counts.unique().numel() > 1
    assert int(counts.sum()) == LAYERS * HEADS * 40


def test_layouts_have_the_entries_of_the_heads_with_the_fewest_and_the_most(divided: LocalEngine) -> None:
    """As the slot has them, whose room is for the whole ring."""
    one = asked(150)
    tiny.enter(divided, one, slot=1)
    (layout,) = divided.compress(0, one.kv)
    body = divided.batch.bodies[0]
    assert body.places is not None
    room = body.places[:, 1, :, 1] + layout.capacity
    assert (layout.fewest, layout.most) == (int(room.min()), int(room.max()))
    assert layout.fewest < layout.capacity < layout.most
    assert divided.compress(0, asked(150, "equal").kv)[0].most == 0
    tiny.stage(divided, asked(30))
    assert divided.compress(0, asked(30).kv)[0].most == 0  # nothing is selected


def test_a_slot_has_eight_bytes_more_for_each_layer_and_head(llama_dir: Path, divided: LocalEngine) -> None:
    equal = build(tiny.config(llama_dir))
    assert divided.limits.slot_bytes == equal.limits.slot_bytes + 8 * LAYERS * HEADS
    assert divided.limits.entry_bytes == equal.limits.entry_bytes


def test_without_eviction_and_with_equal_heads_a_request_has_the_bits_of_a_slot_that_is_not_divided(
    llama_dir: Path, divided: LocalEngine
) -> None:
    equal = build(tiny.config(llama_dir))
    for one in (
        asked(30),
        asked(150, "equal"),
        tiny.request(tiny.prompt(40), kv=KVChoice("full", select=SnapKV(window=8))),
    ):
        logits = []
        for engine in (equal, divided):
            own = replace(one, kv=replace(one.kv, heads="equal")) if engine is equal else one
            tiny.enter(engine, own, slot=1)
            logits.append(tiny.decode(engine, 20, slot=1)[1])
        assert torch.equal(*logits)


@pytest.mark.parametrize("encoding", NEAR)
def test_encoded_entries_of_divided_heads_give_logits_close_to_those_of_plain_ones(
    llama_dir: Path, encoding: PlaneFormat
) -> None:
    logits = []
    for engine in (started(llama_dir), started(llama_dir, slot_format=SlotFormat(encoding, "ragged"))):
        tiny.enter(engine, asked(150), slot=1)
        logits.append(tiny.decode(engine, 50, slot=1, forced=tiny.prompt(50))[1])
    plain, encoded = logits
    assert 0 < (encoded - plain).abs().mean() < NEAR[encoding] * plain.std()


@pytest.mark.parametrize("encoding", NEAR)
def test_encoded_entries_of_equal_heads_have_the_bits_of_a_slot_that_is_not_divided(
    llama_dir: Path, encoding: PlaneFormat
) -> None:
    equal = build(tiny.config(llama_dir, slot_format=SlotFormat(encoding)))
    ragged = started(llama_dir, slot_format=SlotFormat(encoding, "ragged"))
    logits = []
    for engine in (equal, ragged):
        tiny.enter(engine, asked(150, "equal"), slot=1)
        logits.append(tiny.decode(engine, 50, slot=1, forced=tiny.prompt(50))[1])
    assert torch.equal(*logits)


def test_a_request_gives_the_same_tokens_alone_and_beside_others(divided: LocalEngine) -> None:
    alone = {}
    each = [asked(150), asked(90), asked(33, "equal")]
    for slot, one in enumerate(each):
        tiny.enter(divided, one, slot)
        alone[slot] = tiny.decode(divided, 40, slot)[0]
        divided.release(slot)
    for slot, one in enumerate(each):
        tiny.enter(divided, one, slot)
    together: dict[int, list[int]] = {slot: [] for slot in alone}
    for _ in range(40):
        for slot, ((token, _),) in enumerate(divided.sample().read()):
            together[slot].append(token)
        divided.forward()
    assert together == alone


def test_nothing_of_an_earlier_request_is_read(divided: LocalEngine) -> None:
    tiny.enter(divided, asked(150), slot=1)
    want = tiny.decode(divided, 40, slot=1)[1]
    poison_all(divided)
    tiny.enter(divided, asked(150), slot=1)
    assert torch.equal(tiny.decode(divided, 40, slot=1)[1], want)


def test_drafts_that_are_taken_back_leave_every_heads_entries_as_they_were(
    llama_dir: Path, divided: LocalEngine
) -> None:
    one, drafting = asked(150), started(llama_dir, speculate=3)
    tiny.enter(divided, one)
    want, _ = tiny.decode(divided, 60)
    tiny.enter(drafting, one)
    tokens: list[int] = []
    while len(tokens) < 60:
        tokens += [token for token, _ in drafting.sample().read()[0] if token is not None]
        right, wrong = want[len(tokens) : len(tokens) + 1], [5, 5]
        drafting.forward({0: (*right, *wrong)})
    assert tokens[:60] == want


def test_a_slot_moves_to_another_engine(llama_dir: Path, divided: LocalEngine) -> None:
    tiny.enter(divided, asked(150), slot=2)
    tiny.decode(divided, 5, slot=2)
    packet = divided.export(2)
    other = started(llama_dir)
    other.restore(packet, 0)
    assert tiny.decode(other, 30, slot=0)[0] == tiny.decode(divided, 30, slot=2)[0]


def test_what_divided_heads_cannot_do_is_refused(llama_dir: Path, divided: LocalEngine) -> None:
    equal = build(tiny.config(llama_dir))
    with pytest.raises(InvalidRequest, match="global") as refused:
        equal.admit(asked(50))
    assert refused.value.param == "kv_heads"
