"""Rings against a naive cache: a list from which the oldest unprotected token is dropped."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringkv.base.kv import POLICIES, KVChoice, Layout
from ringkv.base.selectors import SnapKV
from ringkv.cache.compress.kept import kept
from ringkv.cache.layouts import layout
from ringkv.cache.rings import Rings


def entries_after_prefill(plan: Layout) -> list[int]:
    """Return positions by entry, with the first candidates selected."""
    candidates = plan.prompt - plan.recent - plan.sinks
    votes = torch.arange(candidates, 0, -1).float()[None] if plan.selected else None
    return kept(plan, votes, heads=1)[0].tolist()


def decode(rings: Rings, entries: list[int | None], steps: int) -> None:
    """Write each next position to the slot's next entry, and check that live entries stay contiguous."""
    for _ in range(steps):
        entry, live, n = int(rings.next_entry()[0]), int(rings.live_after_next()[0]), int(rings.length[0])
        entries[entry] = n
        assert all(e is not None for e in entries[:live])
        assert all(e is None for e in entries[live:])
        rings.advance()


def placed(plan: Layout, capacity: int) -> tuple[Rings, list[int | None]]:
    rings = Rings.empty(1, torch.device("cpu"))
    rings.place(0, plan)
    entries = entries_after_prefill(plan)
    return rings, [*entries, *[None] * (capacity - len(entries))]


def test_the_papers_figure_4_entry_by_entry() -> None:
    # S = 1, R = 4, tokens 0..26 prefilled, no entries for selected ones.
    plan = layout(KVChoice("snapstream", sinks=1, recent=4), n=27, capacity=5)
    rings, entries = placed(plan, 5)
    assert entries == [0, 25, 26, 23, 24]
    decode(rings, entries, 1)
    assert entries == [0, 25, 26, 27, 24]


def test_figure_4_with_selected_tokens_between_sinks_and_ring() -> None:
    plan = layout(KVChoice("snapstream", sinks=1, recent=4), n=27, capacity=8)
    votes = torch.zeros(1, 22)  # candidates are tokens 1 .. 22
    votes[0, [4, 19, 11]] = torch.tensor([3.0, 2.0, 1.0])
    assert kept(plan, votes, 1)[0].tolist() == [0, 5, 12, 20, 25, 26, 23, 24]


@settings(max_examples=100)
@given(
    sinks=st.integers(0, 6),
    recent=st.integers(1, 12),
    selected=st.integers(0, 12),
    n=st.integers(1, 60),
    elastic=st.booleans(),
)
def test_decoding_drops_only_the_oldest_unprotected_token(
    sinks: int, recent: int, selected: int, n: int, elastic: bool
) -> None:
    capacity = sinks + recent + selected
    plan = layout(KVChoice("snapstream", sinks=sinks, recent=recent, elastic=elastic), n, capacity)
    rings, entries = placed(plan, capacity)
    assert plan.live(n) == sum(e is not None for e in entries)

    held, protected = sorted(e for e in entries if e is not None), set(_protected(plan, entries, sinks))
    for position in range(n, n + 3 * plan.ring + 5):
        limit = plan.capacity
        if len(held) == limit:
            held.remove(min(p for p in held if p not in protected))
        held.append(position)
        if len(protected) < plan.protected:
            protected.add(position)  # a prompt shorter than the sinks: the next tokens become sinks
        assert plan.entry(position) == int(rings.next_entry()[0])
        decode(rings, entries, 1)
        assert sorted(e for e in entries if e is not None) == sorted(held)
        assert plan.live(position + 1) == len(held)
        assert plan.evicted(position + 1) == position + 1 - len(held)


def _protected(plan: Layout, entries: list[int | None], sinks: int) -> list[int]:
    """Return what is never evicted, the entries before the ring; all sinks are among them."""
    first = [e for e in entries[: plan.protected] if e is not None]
    assert set(range(min(sinks, plan.prompt))) <= set(first)
    return first


@settings(max_examples=100)
@given(n=st.integers(1, 40), steps=st.integers(0, 80), recent=st.integers(1, 9))
def test_laps_count_each_return_to_the_rings_first_entry(n: int, steps: int, recent: int) -> None:
    plan = layout(KVChoice("snapstream", sinks=2, recent=recent), n, capacity=20)
    written = [plan.entry(p) for p in range(n, n + steps)]
    passed = sum(
        1 for p, entry in zip(range(n, n + steps), written, strict=True) if entry == plan.protected and p > plan.base
    )
    assert plan.wrap_count(n + steps) == (passed if plan.base < n + steps else 0)


@settings(max_examples=100)
@given(n=st.integers(1, 60), gap=st.integers(0, 100), elastic=st.booleans(), policy=st.sampled_from(POLICIES))
def test_evicted_tokens_shift_positions_and_no_entry(n: int, gap: int, elastic: bool, policy: str) -> None:
    choice = KVChoice(policy, sinks=4, recent=6, select=SnapKV(window=3), elastic=elastic, review=5)
    plan = layout(choice, n, capacity=64 if policy in ("full", "arkvale") else 20)
    moved, rings, twin = plan.shifted(gap), Rings.empty(1, torch.device("cpu")), Rings.empty(1, torch.device("cpu"))
    rings.place(0, moved)
    twin.place(0, plan)
    for step in range(50 if plan.free_entries is None else plan.free_entries):
        assert moved.entry(n + gap + step) == plan.entry(n + step)
        assert moved.live(n + gap + step) == plan.live(n + step)
        assert moved.evicted(n + gap + step) == plan.evicted(n + step) + gap
    for _ in range(40):
        assert rings.next_entry().tolist() == twin.next_entry().tolist()
        assert rings.live_after_next().tolist() == twin.live_after_next().tolist()
        rings.advance()
        twin.advance()


@settings(max_examples=100)
@given(n=st.integers(1, 60), steps=st.integers(0, 70), elastic=st.booleans())
def test_the_newest_entries_hold_the_newest_tokens_in_order(n: int, steps: int, elastic: bool) -> None:
    plan = layout(KVChoice("snapstream", sinks=4, recent=6, elastic=elastic), n, 20)
    rings, entries = placed(plan, 20)
    decode(rings, entries, steps)
    ages = [entries[entry] for entry in plan.by_age(n + steps)]
    assert sorted(ages) == sorted(e for e in entries if e is not None)
    newest = len(ages) - min(len(ages), plan.protected)
    assert ages[len(ages) - newest :] == list(range(n + steps - newest, n + steps))


def test_a_short_prompt_gives_its_unused_entries_to_the_ring() -> None:
    plan = layout(KVChoice("snapstream", sinks=4, recent=16), n=10, capacity=64)
    assert (plan.protected, plan.ring, plan.live(10)) == (10, 54, 10)


def test_the_papers_layout_leaves_the_selected_entries_of_a_short_prompt_empty() -> None:
    plan = layout(KVChoice("snapstream", sinks=4, recent=16, elastic=False), n=10, capacity=64)
    assert (plan.protected, plan.base, plan.ring, plan.live(1000)) == (4, 4, 16, 20)


def test_a_free_slot_is_neither_read_nor_advanced() -> None:
    rings = Rings.empty(2, torch.device("cpu"))
    rings.place(1, layout(KVChoice("full"), n=3, capacity=8))
    rings.advance()
    assert rings.live_after_next().tolist() == [0, 5]
    rings.release(1)
    assert rings.live_after_next().tolist() == [0, 0]
