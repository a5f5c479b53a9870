"""Layouts of the policies, and the budgets that they refuse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringkv.base.cache_spec import CacheSpec, LayerGroup
from ringkv.base.errors import BudgetTooSmall, InvalidRequest, PromptTooLong
from ringkv.base.kv import POLICIES, KVChoice, Layout
from ringkv.base.selectors import TOVA, KeyDiff, KVzip, SnapKV
from ringkv.cache.compress.kept import kept
from ringkv.cache.layouts import layout, layouts
from ringkv.cache.rings import Rings


@pytest.mark.parametrize(
    ("policy", "n", "want"),
    [
        # capacity 32, sinks 4, recent 8: selected 20
        ("full", 30, Layout(30, 0, 0, 30, protected=0, base=0, ring=32, wraps=False)),
        ("streaming", 100, Layout(100, 4, 0, 28, protected=4, base=4, ring=28, wraps=True)),
        ("streaming", 20, Layout(20, 4, 0, 16, protected=4, base=4, ring=28, wraps=True)),
        ("snapstream", 100, Layout(100, 4, 20, 8, protected=24, base=4, ring=8, wraps=True)),
        ("snapstream", 30, Layout(30, 24, 0, 6, protected=24, base=24, ring=8, wraps=True)),
        ("snapstream", 10, Layout(10, 10, 0, 0, protected=10, base=10, ring=22, wraps=True)),
        ("snapkv", 100, Layout(100, 0, 18, 6, protected=24, base=100, ring=8, wraps=False)),
        ("snapkv", 20, Layout(20, 20, 0, 0, protected=20, base=20, ring=12, wraps=False)),
        ("scissorhands", 100, Layout(100, 4, 15, 8, protected=27, base=100, ring=5, wraps=True, review=5)),
        ("scissorhands", 20, Layout(20, 20, 0, 0, protected=20, base=20, ring=12, wraps=True, review=5)),
    ],
)
def test_a_policy_lays_out_a_prompt_as_specified(policy: str, n: int, want: Layout) -> None:
    assert layout(KVChoice(policy, sinks=4, recent=8, review=5, select=SnapKV(window=6)), n, 32) == want


def test_the_fixed_layout_keeps_every_middle_token_that_fits() -> None:
    plan = layout(KVChoice(sinks=4, recent=8, elastic=False), 30, 32)
    assert plan == Layout(30, 22, 0, 8, protected=22, base=4, ring=8, wraps=True)


@pytest.mark.parametrize(("system", "n"), [(0, 330), (300, 330), (510, 516), (515, 516), (516, 516)])
def test_the_fixed_layout_has_the_ring_of_the_paper_whatever_is_protected(system: int, n: int) -> None:
    choice = KVChoice(sinks=4, recent=0.25, elastic=False, protect=((0, system),) if system else ())
    assert layout(choice, n, 2048).ring == 512


@pytest.mark.parametrize("n", [33, 34, 100])
def test_a_prompt_over_the_budget_is_laid_out_as_the_paper_does(n: int) -> None:
    ours, papers = (layout(KVChoice(sinks=4, recent=8, elastic=elastic), n, 32) for elastic in (True, False))
    assert ours == papers == Layout(n, 4, 20, 8, protected=24, base=4, ring=8, wraps=True)


def test_a_share_of_the_budget_is_recent() -> None:
    assert layout(KVChoice(recent=0.25), 5000, 2048).ring == 512


@pytest.mark.parametrize(
    ("choice", "error", "words"),
    [
        (KVChoice(budget=10, sinks=8, recent=4), BudgetTooSmall, "10 is less than 8 sinks and 4 recent"),
        (KVChoice("streaming", budget=4, sinks=4), BudgetTooSmall, "raise it to 5"),
        (
            KVChoice("snapkv", budget=32, select=SnapKV(window=64)),
            BudgetTooSmall,
            "64 in its window and 8 for the output and 1 sel.* to 86,",
        ),
        (KVChoice("full"), PromptTooLong, "keeps all 100 tokens of the prompt, and a slot holds 64"),
        (KVChoice("full"), PromptTooLong, "start with kv_policy full, or choose kv_policy snapstream"),
        (
            KVChoice("full", budget=9),
            PromptTooLong,
            "kv_budget holds 9; raise it or leave it out, or choose kv_policy snap",
        ),
        (KVChoice(budget=65), InvalidRequest, "over the 64 entries"),
    ],
)
def test_a_budget_that_cannot_work_is_refused_with_the_number(
    choice: KVChoice, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        layout(choice, 100, 64)


spans = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 12)).map(lambda one: (one[0], sum(one))), max_size=3)
choices = st.builds(
    KVChoice,
    st.sampled_from([policy for policy in POLICIES if policy != "scissorhands"]),
    st.none() | st.integers(1, 40),
    sinks=st.integers(0, 50),
    recent=st.floats(0, 1, exclude_min=True, exclude_max=True) | st.integers(1, 50),
    elastic=st.booleans(),
    protect=spans.map(tuple),
    select=st.sampled_from([KeyDiff(), TOVA(), KVzip()]) | st.builds(SnapKV, window=st.integers(1, 40)),
)


@settings(max_examples=100)
@given(choice=choices, n=st.integers(1, 70))
def test_any_valid_choice_gives_a_consistent_layout_or_is_refused(choice: KVChoice, n: int) -> None:
    """Compared with a list of entries: contiguous, no token twice, the newest kept, within the budget."""
    capacity = 40
    try:
        plan = layout(choice, n, capacity)
    except (BudgetTooSmall, PromptTooLong):
        return
    budget = capacity if choice.budget is None or choice.policy == "arkvale" else choice.budget
    assert plan.capacity <= budget
    assert min(plan.sinks, plan.selected, plan.recent, plan.protected, plan.base) >= 0
    votes = torch.ones(1, n - plan.recent - plan.sinks) if plan.selected else None
    after_prefill: list[int] = kept(plan, votes, heads=1)[0].tolist()
    assert len(after_prefill) == plan.live(n) == len(set(after_prefill))
    entries: dict[int, int] = dict(enumerate(after_prefill))
    for position in range(n, n + (2 * budget if plan.free_entries is None else plan.free_entries)):
        entries[plan.entry(position)] = position
        live = plan.live(position + 1)
        assert sorted(entries) == list(range(live))
        assert len(set(entries.values())) == live <= budget
        newest = range(max(n, position + 1 - plan.ring), position + 1)
        assert set(newest) <= set(entries.values())


@settings(max_examples=100)
@given(n=st.integers(1, 70), review=st.integers(1, 20), steps=st.integers(0, 90))
def test_a_watched_slot_is_reviewed_every_n_tokens_and_loses_n_entries_once_it_is_full(
    n: int, review: int, steps: int
) -> None:
    """Compared with a count of entries, and with the numbers that a step uses."""
    choice, rings = KVChoice("scissorhands", sinks=2, recent=6, review=review), Rings.empty(1, torch.device("cpu"))
    plan = layout(choice, n, 40)
    rings.place(0, plan)
    live, since, wraps = min(n, 40 - review), 0, 0
    for seen in range(n, n + steps):
        if live == 40 and since:
            assert plan.is_due(seen)
            rings.place(0, plan.reviewed(seen))
            live, wraps, since = 40 - review, wraps + 1, 0
        elif plan.is_due(seen):
            assert since <= review
            assert (40 - live) % review == 0
            since = 0
        assert plan.entry(seen) == live == int(rings.next_entry()[0])
        live, since = live + 1, since + 1
        assert plan.live(seen + 1) == live == int(rings.live_after_next()[0])
        assert plan.evicted(seen + 1) == seen + 1 - live
        assert plan.wrap_count(seen + 1) == wraps
        rings.advance()


@settings(max_examples=100)
@given(n=st.integers(1, 70), review=st.integers(1, 20), recent=st.integers(1, 15), layers=st.integers(1, 40))
def test_every_layer_is_scored_every_n_tokens_and_so_early_that_only_recent_tokens_come_later(
    n: int, review: int, recent: int, layers: int
) -> None:
    choice = KVChoice("scissorhands", sinks=2, recent=recent, review=review)
    group = LayerGroup(tuple(range(layers)), CacheSpec.grouped(1, 8), 1)
    (plan,) = layouts(choice, n, 40, [group])
    turns: dict[int, list[int]] = {layer: [] for layer in range(layers)}
    for seen in range(n, n + 90):
        assert seen == n or plan.until_scored(seen) == next(more for more in range(90) if plan.scored(seen + more))
        for layer in plan.scored(seen):
            turns[layer].append(seen)
            assert plan.unscored(seen) == seen - (turns[layer][-2] if len(turns[layer]) > 1 else n)
    first = next(seen for seen in range(n + 1, n + 90) if plan.is_due(seen) and plan.is_full(seen))
    steps = min(layers, review, recent + 1)
    for layer, seen in turns.items():
        assert seen == list(range(seen[0], n + 90, review))
        assert n < seen[0] <= n + review
        (lead,) = {first - one for one in seen if first - review < one <= first}
        assert lead == (layers - 1 - layer) * steps // layers <= min(review - 1, recent)
    at_once = [len(plan.scored(seen)) for seen in range(first - steps + 1, first + 1)]
    assert max(at_once) - min(at_once) <= 1
