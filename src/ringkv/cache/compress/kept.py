"""kept: which prompt token each entry of a slot holds, as an index map. A policy decides nothing else.

H key-value heads, C entries of the budget. EMPTY marks an entry without a token.
"""

import torch
from torch import Tensor

from ringkv.base.kv import Layout

EMPTY = -1
MINUS_ZERO = -(1 << 31)
"""The bits of -0.0 as an int32."""
AT_ONCE = 1 << 20  # votes that are ordered at once: their keys, and those that `topk` sorts, take 8 to 16 bytes each


def kept(layout: Layout, votes: Tensor | None, heads: int) -> Tensor:
    """Return int64 [H, live], the prompt token of each live entry.

    votes: float32 [H, candidates], of tokens sinks .. n-recent-1; None if no token has to be selected. Selected tokens
    are in the order of the prompt. Of tokens with equal votes the earlier one is selected.
    """
    if votes is None:
        return torch.cat(shared(layout)).expand(heads, -1)
    before, after = (tokens.expand(heads, -1) for tokens in shared(layout))
    selected = top_votes(votes, layout.selected) + layout.sinks
    return torch.cat((before.to(selected), selected, after.to(selected)), 1)


def shared(layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the tokens that every head keeps, before its selected ones and after them, int64 each."""
    start = layout.prompt - layout.recent
    appended = layout.protected - layout.sinks - layout.selected if layout.selected else 0
    window = torch.arange(start, start + appended)
    return torch.arange(layout.sinks), torch.cat((window, _in_ring_order(layout)))


def sortable(votes: Tensor) -> Tensor:
    """Return int64 keys of 32 bits that sort like float32 votes without NaN.

    The bits of a non-negative float, read as an integer, sort like the float. Those of a negative float sort the other
    way, so they are counted back from those of -0.0.
    """
    bits = votes.contiguous().view(torch.int32)
    return torch.where(bits < 0, MINUS_ZERO - bits, bits).long()


def ordered(votes: Tensor) -> Tensor:
    """Return int64 keys that sort like float32 votes [..., n]; of equal votes the first is higher. No vote is NaN.

    The place in the lower bits makes all keys of a row distinct, so that `topk` has no ties to break.
    """
    return sortable(votes).bitwise_left_shift_(32).sub_(torch.arange(votes.shape[-1], device=votes.device))


def top_votes(votes: Tensor, count: int) -> Tensor:
    """Return int64 [H, count], the places of each row's highest votes in ascending order."""
    # Already in order; sorting would take as long as selecting.
    return highest(votes, count).nonzero()[:, 1].view(-1, count)


def highest(votes: Tensor, count: int) -> Tensor:
    """Return bool like votes [H, n]: whether a vote is among the `count` highest ones of its row."""
    mask = torch.zeros_like(votes, dtype=torch.bool)
    rows = max(1, AT_ONCE // max(1, votes.shape[1]))
    for some, of_some in zip(mask.split(rows), votes.split(rows), strict=True):
        some.scatter_(1, ordered(of_some).topk(count, sorted=False).indices, True)
    return mask


def _in_ring_order(layout: Layout) -> Tensor:
    """Return int64 [used entries of the ring]: entry i holds the token p with (p - base) % ring = i."""
    n = layout.prompt
    used = layout.live(n) - layout.protected
    if used <= 0:
        return torch.empty(0, dtype=torch.int64)
    first = n - used
    return first + (torch.arange(used) - (first - layout.base)) % layout.ring
