"""Protected tokens are kept until the answer ends, beside the newest tokens, and no token is kept twice."""

import re

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ringkv.base.errors import BudgetTooSmall, InvalidRequest
from ringkv.base.kv import KVChoice, Layout
from ringkv.base.selectors import SnapKV
from ringkv.cache.compress.kept import kept
from ringkv.cache.layouts import layout
from ringkv.cache.protect import end, protected, tokens

spans = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 12)).map(lambda one: (one[0], sum(one))), max_size=3)


def entries_after_prefill(plan: Layout, protect: tuple[tuple[int, int], ...]) -> list[int]:
    """Return positions by entry, with infinite votes for protected tokens and none for the others."""
    if not plan.selected:
        return kept(plan, None, heads=1)[0].tolist()
    votes = torch.zeros(1, plan.prompt - plan.recent - plan.sinks)
    for start, stop in protect:
        votes[:, max(0, start - plan.sinks) : max(0, stop - plan.sinks)] = float("inf")
    return kept(plan, votes, heads=1)[0].tolist()


@settings(max_examples=100)
@given(
    policy=st.sampled_from(["streaming", "snapstream"]),
    sinks=st.integers(0, 5),
    recent=st.integers(1, 12),
    selected=st.integers(0, 30),
    n=st.integers(1, 70),
    elastic=st.booleans(),
    protect=spans,
)
def test_what_is_protected_survives_three_rounds_of_the_ring(policy, sinks, recent, selected, n, elastic, protect):
    choice = KVChoice(policy, sinks=sinks, recent=recent, elastic=elastic, protect=tuple(protect))
    capacity = sinks + recent + selected
    try:
        plan = layout(choice, n, capacity)
    except BudgetTooSmall:
        wanted = {t for start, stop in protect for t in range(start, min(stop, n))} - set(range(sinks))
        assert len(wanted) > selected or end(protected(tuple(protect), n)) >= capacity
        return
    entries: list[int | None] = [*entries_after_prefill(plan, tuple(protect)), *[None] * capacity][:capacity]
    wanted = {t for start, stop in protect for t in range(start, min(stop, n))}
    assert plan.capacity <= capacity
    for position in range(n, n + 3 * plan.ring + 3):
        live = entries[: plan.live(position)]
        assert None not in live
        assert len(set(live)) == len(live)
        assert wanted <= set(live)
        assert set(range(max(n, position - plan.ring), position)) <= set(live)
        entries[plan.entry(position)] = position


def test_protection_in_a_fixed_layout_shrinks_its_ring():
    choice = KVChoice("streaming", sinks=0, recent=1, elastic=False, protect=((16, 17),))
    assert (layout(choice, 17, 18).protected, layout(choice, 17, 18).ring) == (17, 1)


@given(protect=spans)
def test_without_protection_in_its_ring_a_layout_is_the_usual_one(protect):
    choice = KVChoice(sinks=4, recent=8, protect=tuple(protect))
    assume(end(protected(choice.protect, 100)) <= 92)
    assume(tokens(protected(choice.protect, 100), 4) <= 20)
    assert layout(choice, 100, 32) == layout(KVChoice(sinks=4, recent=8), 100, 32)


def test_snapkv_selects_protected_tokens_first():
    choice = KVChoice("snapkv", recent=8, select=SnapKV(window=6), protect=((40, 50), (97, 100)))
    plan = layout(choice, 100, 32)
    entries = entries_after_prefill(plan, choice.protect)
    assert set(range(40, 50)) | set(range(94, 100)) <= set(entries)


def test_spans_are_put_in_order_and_joined():
    assert protected(((30, 40), (0, 5), (5, 9), (35, 60)), 50) == ((0, 9), (30, 50))
    assert tokens(((0, 9), (30, 50)), first=4) == 25


@pytest.mark.parametrize("span", [(5, 5), (9, 3), (-1, 4)])
def test_an_invalid_span_is_refused(span):
    with pytest.raises(InvalidRequest, match=re.escape(f"kv_protect is {span}; it must be")):
        KVChoice(protect=(span,))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("snapstream", "names 21 tokens and kv_budget 32 leaves 20 entries"),
        ("snapkv", "names 21 tokens and kv_budget 32 leaves 18 entries"),
    ],
)
def test_more_than_can_be_selected_is_refused_with_the_number(policy, words):
    with pytest.raises(BudgetTooSmall, match=words):
        layout(KVChoice(policy, sinks=4, recent=8, select=SnapKV(window=6), protect=((30, 51),)), 100, 32)
