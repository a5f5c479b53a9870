"""by_head: which prompt tokens each entry holds if heads divide the entries of a layer, or of all layers.

L layers of a group, H key-value heads, n candidates, K selected tokens of a head on average.
Source: AdaKV (arXiv 2407.11550), Algorithm 1, for a layer's heads; KVzip (arXiv 2505.23416) for those of all layers.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ringkv.base.kv import HeadBudgets, Layout
from ringkv.cache.compress.kept import EMPTY, ordered, shared

SAFEGUARD = 0.2
"""Share of the average that every head selects (AdaKV, section 3.3)."""

SCOPES: Mapping[HeadBudgets, Callable[[Tensor], Tensor]] = {
    "adaptive": lambda votes: votes.flatten(1),
    "global": lambda votes: votes.flatten()[None],
}
"""Votes [L, H, n] -> [scopes, votes that compete]."""


def kept_by_head(layout: Layout, votes: Tensor, counts: Tensor) -> Tensor:
    """Return int64 [L, H, most], the prompt token of each live entry, EMPTY after a head's last.

    votes: float32 [L, H, candidates], of tokens sinks .. n-recent-1. counts: int64 [L, H], how many each head selects.
    """
    selected = top_of_each(votes, counts)
    return entries_of(layout, torch.cat((selected.new_ones(*counts.shape, layout.sinks), selected), -1))


def entries_of(layout: Layout, mask: Tensor, later: int = 0) -> Tensor:
    """Return int64 [L, H, most], the places that a mask bool [L, H, n] has, then those at the end, which all keep.

    later: how much further the latter are than their tokens.
    """
    flat, after = mask.flatten(0, 1), shared(layout)[1].to(mask.device) + later
    counts = flat.sum(-1)
    most = int(counts.max()) + len(after)
    found = torch.full((len(flat), most), EMPTY, device=mask.device)
    head, place = flat.nonzero(as_tuple=True)
    rank = torch.arange(len(head), device=mask.device) - (counts.cumsum(0) - counts)[head]
    found[head, rank] = place
    tail = counts[:, None] + torch.arange(len(after), device=mask.device)
    found.scatter_(1, tail, after.expand(len(flat), -1))
    return found.view(*mask.shape[:2], most)


def spread(layout: Layout, sources: Tensor) -> Layout:
    """Return the layout with the entries of the heads that have the fewest and the most.

    sources: int64 [L, H, most] of `kept_by_head`. Waits for a device that computes them.
    """
    counts = (sources != EMPTY).sum(-1).flatten().tolist()
    free = layout.capacity - sum(counts) // len(counts)  # as many in each head
    return layout._replace(fewest=free + min(counts), most=free + max(counts))


def selected_mask(votes: Tensor, selected: int, heads: HeadBudgets) -> Tensor:
    """Return bool [L, H, n]: K tokens of each head on average, and at least SAFEGUARD K of each.

    The tokens of each scope add up to those that equal heads select. Of equal votes the first wins, in the order of
    layers, heads and tokens; so of a head these are the tokens with the highest votes. A vote below 0 is never
    selected.
    """
    own = _top(votes, int(SAFEGUARD * selected)) & (votes >= 0)
    competing = SCOPES[heads](votes.masked_fill(own, float("inf")))
    total = selected * (votes[..., 0].numel() // len(competing))
    return _top(competing, total).view_as(votes)


def top_of_each(votes: Tensor, counts: Tensor) -> Tensor:
    """Return bool [L, H, n]: of each head so many tokens with the highest votes; of equal votes the first wins."""
    keys, most = ordered(votes), int(counts.max())
    places = keys.topk(most).indices
    ranks = torch.arange(most, device=votes.device)
    return torch.zeros_like(keys, dtype=torch.bool).scatter_(-1, places, ranks < counts[..., None])


def _top(votes: Tensor, count: int) -> Tensor:
    """Return bool [..., n], the highest votes of each row; of those below 0 any."""
    keys = ordered(votes)
    return torch.zeros_like(keys, dtype=torch.bool).scatter_(-1, keys.topk(count, sorted=False).indices, True)
