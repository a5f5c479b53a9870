"""evict: what a review may evict of a slot, and how.

H key-value heads, n live entries.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.compress.kept import top_votes
from ringkv.cache.protect import protected


def fixed(positions: Tensor, layout: Layout, seen: int, choice: KVChoice) -> Tensor:
    """Return bool [H, n]: the entries of sinks, protected and recent tokens, of `seen` ones, which are not evicted."""
    spans = [(0, choice.sinks), *protected(choice.protect, layout.prompt)]
    spans.append((seen - choice.recent_entries(layout.capacity), seen))
    is_fixed = torch.zeros_like(positions, dtype=torch.bool)
    for start, stop in spans:
        is_fixed |= (positions >= start) & (positions < stop)
    return is_fixed


def evict(planes: Sequence[Tensor], scores: Tensor, is_fixed: Tensor, count: int) -> None:
    """Evict the `count` entries of each head with the lowest scores [H, n], none negative, of planes [H, n, ...].

    The others become the first ones, in place and in order.
    """
    kept = top_votes(scores.masked_fill(is_fixed, float("inf")), scores.shape[1] - count)
    for plane in planes:
        for entries, index in zip(plane, kept, strict=True):
            entries[: len(index)] = entries.index_select(0, index)  # copies whole rows; `gather` copies elements
