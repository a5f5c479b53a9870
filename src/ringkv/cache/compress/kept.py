"""kept: which prompt token each entry of a slot holds, as an index map. A policy decides nothing else.

H key-value heads, C entries of the budget. EMPTY marks an entry without a token.
"""

import torch
from torch import Tensor

from ringkv.base.kv import Layout

EMPTY = -1


def kept(layout: Layout, votes: Tensor | None, heads: int) -> Tensor:
    """Return int64 [H, live], the prompt token of each live entry.

    votes: float32 [H, candidates], of tokens sinks .. n-recent-1; None if no token has to be selected. Selected tokens
    are in the order of the prompt. Of tokens with equal votes the earlier one is selected.
    """
    before, after = (tokens.expand(heads, -1) for tokens in shared(layout))
    if votes is None:
        return torch.cat((before, after), 1)
    selected = top_votes(votes, layout.selected) + layout.sinks
    return torch.cat((before.to(selected), selected, after.to(selected)), 1)


def shared(layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the tokens that every head keeps, before its selected ones and after them, int64 each."""
    start = layout.prompt - layout.recent
    appended = layout.protected - layout.sinks - layout.selected if layout.selected else 0
    window = torch.arange(start, start + appended)
    return torch.arange(layout.sinks), torch.cat((window, _in_ring_order(layout)))


def ordered(votes: Tensor) -> Tensor:
    """Return int64 keys that sort like votes [..., n], which are not negative; of equal votes the first is higher.

    Keys of votes below 0 are lower, in any order. The bits of a non-negative float, read as an integer, sort like the
    float. The place in the lower bits makes all keys of a row distinct, so that `topk` has no ties to break.
    """
    place = torch.arange(votes.shape[-1], device=votes.device)
    return votes.contiguous().view(torch.int32).long().bitwise_left_shift_(32).sub_(place)


def is_top(votes: Tensor, count: int) -> Tensor:
    """Return bool [..., n], the highest votes of each row; of those below 0 any."""
    keys = ordered(votes)
    return torch.zeros_like(keys, dtype=torch.bool).scatter_(-1, keys.topk(count, sorted=False).indices, True)


def top_votes(votes: Tensor, count: int) -> Tensor:
    """Return int64 [H, count], the places of each row's highest votes in ascending order."""
    return is_top(votes, count).nonzero()[:, 1].view(-1, count)  # in order; sorting would take as long as selecting


def _in_ring_order(layout: Layout) -> Tensor:
    """Return int64 [used entries of the ring]: entry i holds the token p with (p - base) % ring = i."""
    n = layout.prompt
    used = layout.live(n) - layout.protected
    if used <= 0:
        return torch.empty(0, dtype=torch.int64)
    first = n - used
    return first + (torch.arange(used) - (first - layout.base)) % layout.ring
