"""Which prompt token each entry of a slot holds: an index map, the whole of what a policy decides.

H key-value heads, C entries of the budget. EMPTY marks an entry without a token.
"""

import torch
from torch import Tensor

from ringkv.base.kv import Layout

EMPTY = -1


def kept(layout: Layout, votes: Tensor | None, heads: int) -> Tensor:
    """int64 [H, live]: the prompt token of each live entry.

    votes float32 [H, candidates] are those of tokens sinks .. n-recent-1; None if none has to be chosen. Selected ones
    stand in the order of the prompt; between equal votes the earlier token wins.
    """
    n, sinks, selected, newest = layout.prompt, layout.sinks, layout.selected, layout.recent
    first = torch.arange(sinks).expand(heads, -1)
    recent = _in_ring_order(layout).expand(heads, -1)
    appended = layout.protected - sinks - selected if selected else 0
    window = torch.arange(n - newest, n - newest + appended).expand(heads, -1)
    if votes is None:
        return torch.cat((first, window, recent), 1)
    chosen = _most_voted(votes, selected) + sinks
    return torch.cat((first.to(chosen), chosen, window.to(chosen), recent.to(chosen)), 1)


def _most_voted(votes: Tensor, count: int) -> Tensor:
    """int64 [H, count]: places of each row's highest votes, in order. Votes are not negative.

    Such a float's bits, read as an integer, rank as it does; the place in the lower bits makes each key unlike all
    others, so that which of two equal votes wins is not left to `topk`.
    """
    place = torch.arange(votes.shape[1], device=votes.device)
    keys = votes.view(torch.int32).long().bitwise_left_shift_(32).sub_(place)
    chosen = torch.zeros_like(keys, dtype=torch.bool).scatter_(1, keys.topk(count, sorted=False).indices, True)
    return chosen.nonzero()[:, 1].view(-1, count)  # marks are in order already: sorting would take as long as choosing


def _in_ring_order(layout: Layout) -> Tensor:
    """int64 [entries of the ring in use]: entry i holds the token p with (p - base) % ring = i."""
    n = layout.prompt
    used = layout.live(n) - layout.protected
    if used <= 0:
        return torch.empty(0, dtype=torch.int64)
    first = n - used
    return first + (torch.arange(used) - (first - layout.base)) % layout.ring
