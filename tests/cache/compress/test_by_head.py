"""Tokens of heads that divide entries, against a loop that hands out one entry after the other."""

from itertools import product

import pytest
import torch

from ringkv.base.kv import HeadBudgets, Layout
from ringkv.cache.compress.by_head import SAFEGUARD, kept_by_head, selected_mask
from ringkv.cache.compress.kept import EMPTY, kept

LAYERS, HEADS, CANDIDATES, SELECTED = 3, 4, 50, 12
LAYOUT = Layout(80, sinks=4, selected=SELECTED, recent=26, protected=4 + SELECTED, base=4, ring=26, wraps=True)


def some_votes(seed: int = 0) -> torch.Tensor:
    """Votes with many ties, and layers and heads that get much more than others."""
    torch.manual_seed(seed)
    return torch.randint(0, 20, (LAYERS, HEADS, CANDIDATES)) * torch.rand(LAYERS, HEADS, 1).pow(4)


def by_hand(votes: torch.Tensor, heads: HeadBudgets) -> set[tuple[int, int, int]]:
    """Hand out each scope's entries: first those that are sure, then by votes."""
    found: set[tuple[int, int, int]] = set()
    for scope in [range(LAYERS)] if heads == "global" else [[layer] for layer in range(LAYERS)]:
        places = list(product(scope, range(HEADS), range(CANDIDATES)))
        places.sort(key=lambda at: (-float(votes[at]), at))
        own: list[tuple[int, int, int]] = []
        for layer, head in product(scope, range(HEADS)):
            own += [at for at in places if at[:2] == (layer, head)][: int(SAFEGUARD * SELECTED)]
        rest = [at for at in places if at not in own]
        found |= {*own, *rest[: SELECTED * len(scope) * HEADS - len(own)]}
    return found


@pytest.mark.parametrize("heads", ["adaptive", "global"])
@pytest.mark.parametrize("seed", range(5))
def test_the_highest_votes_of_a_scope_win_and_every_head_has_its_sure_ones(heads: HeadBudgets, seed: int) -> None:
    votes = some_votes(seed)
    found = selected_mask(votes, SELECTED, heads)
    assert {tuple(at) for at in found.nonzero().tolist()} == by_hand(votes, heads)
    assert found.sum(-1).min() >= int(SAFEGUARD * SELECTED)
    assert found.sum(-1).unique().numel() > 2  # heads differ, or nothing was tested
    scopes = found.sum((1, 2)) if heads == "adaptive" else found.sum()[None]
    assert scopes.unique().tolist() == [SELECTED * HEADS * (1 if heads == "adaptive" else LAYERS)]


def test_a_heads_entries_are_sinks_its_selected_tokens_and_the_ring_in_order() -> None:
    votes = some_votes()
    mask = selected_mask(votes, SELECTED, "adaptive")
    found = kept_by_head(LAYOUT, votes, mask.sum(-1))
    ring = kept(LAYOUT, votes.flatten(0, 1), LAYERS * HEADS)[0, LAYOUT.protected :].tolist()
    for layer, head in product(range(LAYERS), range(HEADS)):
        selected = (mask[layer, head].nonzero()[:, 0] + LAYOUT.sinks).tolist()
        want = [*range(LAYOUT.sinks), *selected, *ring]
        assert found[layer, head].tolist() == want + [EMPTY] * (found.shape[-1] - len(want))


def test_protected_tokens_are_in_every_head() -> None:
    votes = some_votes()
    votes[..., 20:31] = float("inf")
    assert selected_mask(votes, SELECTED, "global")[..., 20:31].all()
