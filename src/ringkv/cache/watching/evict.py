"""evict: what a review may evict of a slot, and how.

H key-value heads, n live entries.
"""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.compress.kept import ordered
from ringkv.cache.protect import protected
from ringkv.kernels.encoding import NO_KEY


def fixed(positions: Tensor, layout: Layout, due: int, choice: KVChoice) -> Tensor:
    """Return bool [H, n]: the entries of sinks, protected and recent tokens, which are not evicted.

    due: tokens that the slot will have seen when it evicts. Entries that come until then are recent.
    """
    recent = (due - choice.recent_entries(layout.capacity), due)
    spans = protected(((0, choice.sinks), *choice.protect), layout.prompt)
    ends = torch.tensor([*chain.from_iterable(spans)], dtype=positions.dtype, device=positions.device)
    # Spans are in order and do not touch.
    is_inside = torch.searchsorted(ends, positions.contiguous(), right=True) % 2 == 1
    return is_inside | (positions < choice.sinks) | ((positions >= recent[0]) & (positions < recent[1]))


def lowest(scores: Tensor, is_fixed: Tensor, count: int) -> Tensor:
    """Return int64 [H, count], the places of the lowest scores [H, n] that are not fixed, in ascending order.

    No score is negative. Of equal ones the last is returned.
    """
    keys = ordered(scores.masked_fill(is_fixed, float("inf")))
    return keys.topk(count, largest=False, sorted=False).indices.sort().values


def evict(planes: Sequence[Tensor], leaving: Tensor) -> None:
    """Evict entries int64 [H, count], in ascending order, of planes [H, n, ...].

    The others become the first ones, in place and in order.
    """
    kept = _others(leaving, planes[0].shape[1])
    for plane in planes:
        for entries, index in zip(plane, kept, strict=True):
            entries[: len(index)] = entries.index_select(0, index)  # copies whole rows; `gather` copies elements


def evict_first_keys(first: Tensor, leaving: Tensor, n: int) -> None:
    """Evict the exact keys [H, E, D] of the first of n entries when `evict` evicts entries int64 [H, count]; in place.

    An entry that was not among the first, and now is, has none. Nor has one that is free now.
    """
    count = first.shape[1]
    before = _others(leaving, n)[:, :count]
    exact = first.gather(1, before.clamp(max=count - 1)[..., None].expand(-1, -1, first.shape[2]))
    first[:, : before.shape[1]] = exact.masked_fill((before >= count)[..., None], NO_KEY)
    first[:, before.shape[1] :] = NO_KEY


def _others(places: Tensor, n: int) -> Tensor:
    """Return int64 [H, n - count], the places 0 .. n-1 that are not among int64 [H, count]; both ascend.

    p - i of them come before the place p, if it is the i-th of those that leave. So the j-th of them is j, and one more
    for each p - i up to j.
    """
    heads, count = places.shape
    index = torch.arange(n, device=places.device)
    ranks = index[: n - count]
    return ranks + torch.searchsorted(places - index[:count], ranks.repeat(heads, 1), right=True)
