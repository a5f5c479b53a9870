"""Tokens of heads that divide entries, against loops that hand out one entry after the other."""

import random
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ringkv.base.cache_spec import CacheSpec, LayerGroup, SlotFormat
from ringkv.base.kv import HeadBudgets, KVChoice, Layout
from ringkv.cache.compress.by_head import SAFEGUARD, Bounds, divided, entries_of, selected_tokens
from ringkv.cache.compress.kept import EMPTY, kept
from ringkv.cache.compress.staged_prompt import GroupView, StagedPrompt

LAYERS, HEADS, CANDIDATES, SELECTED = 3, 4, 50, 12
LAYOUT = Layout(80, sinks=4, selected=SELECTED, recent=26, protected=4 + SELECTED, base=4, ring=26, wraps=True)
GROUP = LayerGroup(tuple(range(LAYERS)), CacheSpec.grouped(HEADS, 8), 2, slots=SlotFormat(reading="ragged"))
SHARES = ((1.0, 3.0, 0.0, 2.0),) * LAYERS


def some_votes(seed: int = 0) -> Tensor:
    """Votes with many ties, and layers and heads that get much more than others."""
    torch.manual_seed(seed)
    return torch.randint(0, 20, (LAYERS, HEADS, CANDIDATES)) * torch.rand(LAYERS, HEADS, 1).pow(4)


def unread() -> StagedPrompt:
    raise AssertionError("votes are all that heads divide by")


def selected(votes: Tensor, heads: HeadBudgets = "global", group: LayerGroup = GROUP) -> Tensor:
    return selected_tokens(votes, GroupView(group, unread, SHARES), KVChoice(heads=heads), LAYOUT)


def by_hand(votes: Tensor) -> set[tuple[int, ...]]:
    """Hand out the entries: first those that are sure, then by votes."""
    places = list(product(range(LAYERS), range(HEADS), range(CANDIDATES)))
    places.sort(key=lambda at: (-float(votes[at]), at))
    sure: list[tuple[int, ...]] = []
    for layer, head in product(range(LAYERS), range(HEADS)):
        sure += [at for at in places if at[:2] == (layer, head)][: int(SAFEGUARD * SELECTED)]
    rest = [at for at in places if at not in sure]
    return {*sure, *rest[: SELECTED * LAYERS * HEADS - len(sure)]}


def highest(votes: Tensor, counts: Tensor) -> list[list[int]]:
    """Return the tokens of each head with its highest votes; of equal ones the earlier first."""
    each = zip(votes.flatten(0, 1).tolist(), counts.flatten().tolist(), strict=True)
    return [sorted(sorted(range(CANDIDATES), key=lambda token: (-row[token], token))[:count]) for row, count in each]


@pytest.mark.parametrize("seed", range(5))
def test_the_highest_votes_of_all_heads_win_and_every_head_has_its_sure_ones(seed: int) -> None:
    votes = some_votes(seed)
    mask = selected(votes)
    assert {tuple(at) for at in mask.nonzero().tolist()} == by_hand(votes)
    assert mask.sum(-1).min() >= int(SAFEGUARD * SELECTED)
    assert mask.sum(-1).unique().numel() > 2  # heads differ, or nothing was tested
    assert mask.sum() == SELECTED * HEADS * LAYERS


@pytest.mark.parametrize("heads", ["equal", "global", "profile"])
@pytest.mark.parametrize("seed", range(5))
def test_a_heads_tokens_are_those_with_its_highest_votes(heads: HeadBudgets, seed: int) -> None:
    votes = some_votes(seed)
    mask = selected(votes, heads)
    assert [row.nonzero()[:, 0].tolist() for row in mask.flatten(0, 1)] == highest(votes, mask.sum(-1))
    assert mask.sum() == SELECTED * HEADS * LAYERS


def test_heads_of_a_profile_select_their_shares_and_those_of_equal_slots_as_many() -> None:
    # Of 48 tokens the head without a share has 2, a fifth of 12; 6 shares divide the other 46, 7.67 tokens each.
    assert selected(some_votes(), "profile").sum(-1).tolist() == [[8, 23, 2, 15]] * LAYERS
    equal = GROUP._replace(slots=SlotFormat())
    assert selected(some_votes(), "profile", equal).sum(-1).unique().tolist() == [SELECTED]


def test_a_heads_entries_are_its_tokens_and_the_ring_in_order() -> None:
    votes = some_votes()
    mask = selected(votes)
    entries = entries_of(LAYOUT, mask)
    ring = kept(LAYOUT, votes.flatten(0, 1), LAYERS * HEADS)[0, LAYOUT.protected :].tolist()
    for row, tokens in zip(entries.flatten(0, 1).tolist(), mask.flatten(0, 1), strict=True):
        want = [*tokens.nonzero()[:, 0].tolist(), *ring]
        assert row == want + [EMPTY] * (entries.shape[-1] - len(want))


@pytest.mark.parametrize("heads", ["equal", "global", "profile"])
def test_protected_tokens_are_in_every_head(heads: HeadBudgets) -> None:
    votes = some_votes()
    votes[..., 20:31] = float("inf")
    assert selected(votes, heads)[..., 20:31].all()


def counts_by_hand(shares: list[float], total: int, bounds: Bounds) -> list[int]:
    """Each head has its least; every further token goes to the head that is farthest below its share."""
    counts = [bounds.least] * len(shares)
    for _ in range(total - sum(counts)):
        free = [head for head in range(len(shares)) if counts[head] < bounds.most]
        counts[min(free, key=lambda head: counts[head] / shares[head])] += 1
    return counts


@pytest.mark.parametrize("seed", range(8))
def test_counts_are_those_of_handing_out_tokens_up_to_one(seed: int) -> None:
    rng = random.Random(seed)
    shares = [rng.random() ** 3 + 1e-3 for _ in range(24)]
    bounds = Bounds(rng.randint(0, 20), rng.randint(130, 400))
    counts, want = divided(shares, 24 * 100, [bounds] * 24), counts_by_hand(shares, 24 * 100, bounds)
    assert sum(counts) == sum(want) == 24 * 100
    assert max(abs(a - b) for a, b in zip(counts, want, strict=True)) <= 2
    assert bounds.least <= min(counts) < max(counts) <= bounds.most


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_sums_are_exact_and_within_bounds_for_any_shares(shares: list[float], least: int, more: int, room: int) -> None:
    average = least + more
    counts = divided(shares, average * len(shares), [Bounds(least, average + room)] * len(shares))
    assert sum(counts) == average * len(shares)
    assert all(least <= count <= average + room for count in counts)


def test_shares_in_whole_tokens_are_met_exactly() -> None:
    assert divided([1, 2, 3, 4], 100, [Bounds(0, 100)] * 4) == [10, 20, 30, 40]
    assert divided([1, 2, 3, 4], 100, [Bounds(15, 35)] * 4) == [15, 20, 30, 35]
    assert divided([0, 0, 0], 30, [Bounds(0, 30)] * 3) == [10, 10, 10]
