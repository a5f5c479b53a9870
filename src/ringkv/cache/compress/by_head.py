"""by_head: which prompt tokens each entry holds if heads of all layers divide the entries.

L layers of a group, H key-value heads, n candidates, K selected tokens of a head on average.
Source: KVzip (arXiv 2505.23416) for heads that divide by votes; DuoAttention (arXiv 2410.10819) for those whose shares
are measured before the prompt is known.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.kv import HeadBudgets, KVChoice, Layout
from ringkv.cache.compress.kept import EMPTY, is_top, ordered, shared
from ringkv.cache.compress.staged_prompt import GroupView

SAFEGUARD = 0.2
"""Share of the average that every head selects (AdaKV, arXiv 2407.11550, section 3.3)."""
SMALLEST = 1e-9
"""Of a share, relative to the largest."""


class Bounds(NamedTuple):
    """Tokens that a head selects: at least, and at most."""

    least: int
    most: int


def division(view: GroupView, choice: KVChoice) -> HeadBudgets:
    """Return how the heads of a group's layers divide entries; those of slots of equal heads divide nothing."""
    return choice.heads if view.group.slots.is_ragged else "equal"


def selected_tokens(votes: Tensor, view: GroupView, choice: KVChoice, plan: Layout) -> Tensor:
    """Return bool [L, H, n]: K tokens of each head on average, those of a head with the highest votes.

    votes: float32 [L, H, n], infinite for protected tokens. A vote below 0 is never selected.
    """
    if division(view, choice) == "global":
        return _among_all_heads(votes, plan.selected)
    if division(view, choice) == "profile":
        return _top_of_each(votes, _by_shares(votes, view, plan.selected))
    return _top_of_each(votes, votes.new_full(votes.shape[:2], plan.selected, dtype=torch.int64))


def entries_of(layout: Layout, mask: Tensor, later: int = 0) -> Tensor:
    """Return int64 [L, H, most], the places that a mask bool [L, H, n] has, then those at the end, which all keep.

    later: how much further the latter are than their tokens. EMPTY comes after a head's last.
    """
    flat, after = mask.flatten(0, 1), shared(layout)[1].to(mask.device) + later
    counts = flat.sum(-1)
    entries = torch.full((len(flat), int(counts.max()) + len(after)), EMPTY, device=mask.device)
    head, place = flat.nonzero(as_tuple=True)
    rank = torch.arange(len(head), device=mask.device) - (counts.cumsum(0) - counts)[head]
    entries[head, rank] = place
    tail = counts[:, None] + torch.arange(len(after), device=mask.device)
    entries.scatter_(1, tail, after.expand(len(flat), -1))
    return entries.view(*mask.shape[:2], -1)


def spread(layout: Layout, sources: Tensor) -> Layout:
    """Return the layout with the entries of the heads that have the fewest and the most.

    sources: int64 [L, H, most] of `entries_of`. Waits for a device that computes them.
    """
    counts = (sources != EMPTY).sum(-1).flatten().tolist()
    free = layout.capacity - sum(counts) // len(counts)  # as many in each head
    return layout._replace(fewest=free + min(counts), most=free + max(counts))


def divided(shares: Sequence[float], total: int, bounds: Sequence[Bounds]) -> list[int]:
    """Return counts that add up to the total: in proportion to shares, each as far as its bounds allow.

    The total is within the bounds of all together. Of equal remainders the first is rounded up.
    """
    least, most = (sum(ends) for ends in zip(*bounds, strict=True))
    assert least <= total <= most, "the bounds allow the total"
    quotas = _quotas(shares, total, bounds)
    counts = [int(quota) for quota in quotas]
    remainders = sorted(range(len(shares)), key=lambda head: counts[head] - quotas[head])
    left = total - sum(counts)
    for head in [head for head in remainders if counts[head] < bounds[head].most][:left]:
        counts[head] += 1
    assert sum(counts) == total
    return counts


def _quotas(shares: Sequence[float], total: int, bounds: Sequence[Bounds]) -> list[float]:
    """Return shares times the largest factor by which they are, within the bounds, at most the total."""
    positive = [max(share / (max(shares) or 1.0), SMALLEST) for share in shares]

    def quotas(factor: float) -> list[float]:
        return [min(max(factor * share, least), most) for share, (least, most) in zip(positive, bounds, strict=True)]

    low, high = 0.0, (max(most for _, most in bounds) + 1) / SMALLEST
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if sum(quotas(middle)) <= total else (low, middle)
    return quotas(low)


def _by_shares(votes: Tensor, view: GroupView, selected: int) -> Tensor:
    """Return int64 [L, H], how many tokens each head selects by its share of a profile."""
    least = max(int(SAFEGUARD * selected), int(votes[0, 0].isinf().sum()))  # every head selects all protected tokens
    bounds = [Bounds(min(least, most), most) for most in (votes >= 0).sum(-1).flatten().tolist()]
    counts = divided([share for layer in view.shares for share in layer], len(bounds) * selected, bounds)
    return votes.new_tensor(counts, dtype=torch.int64).view(votes.shape[:2])


def _among_all_heads(votes: Tensor, selected: int) -> Tensor:
    """Return bool [L, H, n]: the highest votes of all heads, and of each head at least SAFEGUARD K.

    Of equal votes the first wins, in the order of layers, heads and tokens. So of a head these are the tokens with the
    highest votes.
    """
    safe = is_top(votes, int(SAFEGUARD * selected)) & (votes >= 0)
    competing = votes.masked_fill(safe, float("inf")).flatten()
    return is_top(competing, selected * votes[..., 0].numel()).view_as(votes)


def _top_of_each(votes: Tensor, counts: Tensor) -> Tensor:
    """Return bool [L, H, n]: of each head so many tokens with the highest votes; of equal votes the first wins."""
    keys, most = ordered(votes), int(counts.max())
    places = keys.topk(most).indices
    ranks = torch.arange(most, device=votes.device)
    return torch.zeros_like(keys, dtype=torch.bool).scatter_(-1, places, ranks < counts[..., None])
