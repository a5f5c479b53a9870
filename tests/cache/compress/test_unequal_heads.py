"""What a slot takes of a lane whose heads begin at different places, against a loop that hands out entries."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import CacheSpec, LayerGroup, SlotFormat
from ringkv.base.kv import KVChoice, Layout
from ringkv.base.selectors import KeyDiff, KVzip, SnapKV
from ringkv.cache.compress.by_head import SAFEGUARD
from ringkv.cache.compress.kept import EMPTY
from ringkv.cache.compress.select import VOTES, votes_of_layers
from ringkv.cache.compress.selection import kept_tokens, placed
from ringkv.cache.compress.staged_prompt import GroupView, StagedPrompt
from ringkv.cache.layouts import layout
from ringkv.cache.steps import finished

LAYERS, HEADS, GROUPS, WIDTH, BUDGET = 3, 2, 2, 8, 40
GROUP = LayerGroup(tuple(range(LAYERS)), CacheSpec.grouped(HEADS, WIDTH), GROUPS, slots=SlotFormat(reading="ragged"))
BEGINS = torch.tensor([[0, 30], [22, 26], [17, 13]])  # 18 on average
PLACES = 18 + 52
KV = KVChoice(budget=BUDGET, sinks=4, recent=8, heads="global", select=KVzip(), turns="continue")
SELECTED = 40 - 4 - 8
SHARES = ((1.0, 3.0), (0.0, 2.0), (4.0, 0.5))


def prompt(places: int = PLACES) -> StagedPrompt:
    torch.manual_seed(0)
    keys, values = torch.randn(2, LAYERS, HEADS, places, WIDTH)
    q = torch.randn(LAYERS, HEADS, GROUPS, 8, WIDTH)
    return StagedPrompt(list(q), keys, values, 0.3, lambda *_: (), 0, begins=BEGINS)


def kept(choice: KVChoice, entries: int = 52) -> tuple[Layout, Tensor]:
    view = GroupView(GROUP, lambda: prompt(entries + 18), SHARES, BEGINS)
    plan = layout(choice, entries, 64)
    found = finished(kept_tokens(view, choice, plan))
    return placed(view, choice, plan, found), found


def given(votes: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let KVzip vote so, and NaN before a head begins."""
    absent = torch.arange(PLACES) < BEGINS[..., None]
    whole = votes.masked_fill(absent, torch.nan)
    monkeypatch.setitem(VOTES, KVzip, lambda prompt, low, high, selector: whole[..., low:high])  # type: ignore[arg-type]


def by_hand(votes: Tensor, protected: int) -> list[tuple[int, int, int]]:
    """Hand out the entries: first those that are sure, then by votes."""

    def order(at: tuple[int, int, int]) -> tuple[bool, float, tuple[int, int, int]]:
        return at[2] >= int(BEGINS[at[:2]]) + protected, -float(votes[at]), at

    each = []
    for layer, head in product(range(LAYERS), range(HEADS)):
        places = [(layer, head, place) for place in range(int(BEGINS[layer, head]) + 4, PLACES - 8)]
        each.append(sorted(places, key=order))
    sure = [at for places in each for at in places[: int(SAFEGUARD * SELECTED)]]
    rest = sorted((at for places in each for at in places if at not in sure), key=order)
    return [*sure, *rest[: SELECTED * len(each) - len(sure)]]


@pytest.mark.parametrize("protected", [0, 10])
@pytest.mark.parametrize("seed", range(3))
def test_the_highest_votes_win_among_the_places_that_a_head_has(
    protected: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(seed)
    votes = torch.randint(0, 20, (LAYERS, HEADS, PLACES)) * torch.rand(LAYERS, HEADS, 1).pow(3)
    given(votes, monkeypatch)
    plan, found = kept(replace(KV, protect=((0, protected),) if protected else ()))
    want = by_hand(votes, protected)
    for layer, head in product(range(LAYERS), range(HEADS)):
        first = int(BEGINS[layer, head])
        selected = sorted(at[2] for at in want if at[:2] == (layer, head))
        ring = found[layer, head, 4 + len(selected) :][:8].tolist()
        assert found[layer, head, : 4 + len(selected)].tolist() == [*range(first, first + 4), *selected]
        assert sorted(ring) == [*range(PLACES - 8, PLACES)]
        assert [(place - 18 - plan.base) % 8 for place in ring] == [*range(8)]
        assert (found[layer, head, 12 + len(selected) :] == EMPTY).all()
    counts = (found != EMPTY).sum(-1)
    assert int(counts.sum()) == LAYERS * HEADS * BUDGET
    assert (plan.fewest, plan.most) == (int(counts.min()), int(counts.max()))


def test_a_head_with_less_than_its_sure_tokens_keeps_all_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "BEGINS", torch.tensor([[0, PLACES - 8 - 4 - 2], [10, 10], [16, 16]]))
    assert int(BEGINS.sum()) == 18 * LAYERS * HEADS
    given(torch.ones(LAYERS, HEADS, PLACES), monkeypatch)
    _, found = kept(KV)
    assert int((found[0, 1] != EMPTY).sum()) == 4 + 2 + 8
    assert int((found != EMPTY).sum()) == LAYERS * HEADS * BUDGET


def test_shares_are_of_what_heads_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "BEGINS", torch.tensor([[31, 0], [36, 16], [0, 25]]))
    given(torch.rand(LAYERS, HEADS, PLACES), monkeypatch)
    _, found = kept(replace(KV, heads="profile"))
    # Of 168 tokens one head has all its 58 and the head without a share 5, a fifth of 28. 6.5 shares divide 105.
    assert ((found != EMPTY).sum(-1) - 12).tolist() == [[16, 49], [5, 32], [58, 8]]


@pytest.mark.parametrize("select", [SnapKV(window=8), KeyDiff()])
def test_a_head_gets_the_votes_of_a_prompt_that_is_its_own_places(select: SnapKV | KeyDiff) -> None:
    _, found = kept(replace(KV, select=select))
    whole = prompt()
    for layer, head in product(range(LAYERS), range(HEADS)):
        first = int(BEGINS[layer, head])
        keys = whole.keys[layer, head, first:][None, None]
        own = whole._replace(q=[whole.q[layer][[head]]], keys=keys, values=keys, begins=None)
        ((votes,),) = finished(votes_of_layers(own, 4, PLACES - first - 8, select))
        places = [place - first for place in found[layer, head].tolist() if place != EMPTY][4:-8]
        best = votes.argsort(descending=True, stable=True)[: len(places)] + 4
        assert sorted(best.tolist()) == places


def test_all_of_it_is_kept_if_it_fits() -> None:
    plan, found = kept(KV, 38)
    for layer, head in product(range(LAYERS), range(HEADS)):
        first = int(BEGINS[layer, head])
        own = [place for place in found[layer, head].tolist() if place != EMPTY]
        assert own == [*range(first, 38 + 18)]
    assert (plan.fewest, plan.most) == (BUDGET + 18 - 30, BUDGET + 18)
