"""held_tokens: which prompt tokens entries hold, from one turn of a conversation to the next.

Known only of requests with `trace`. L layers of a group, H key-value heads, m entries.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringkv.base.engine import Cached
from ringkv.base.kv import Layout

Held = Sequence[Tensor]
"""Per group of layers int32 [L, H, m], the token of each entry; empty if it is not known."""


def at_end(held: Held, layout: Layout, seen: int) -> Held:
    """Return the tokens of a slot's live entries in the order of `Layout.by_age`, once so many were seen.

    held: those of its entries when the prompt was inserted.
    """
    return tuple(torch.cat((_fixed(own, layout, seen), _newest(own, layout, seen)), 2) for own in held)


def _fixed(held: Tensor, layout: Layout, seen: int) -> Tensor:
    """Return the tokens of the entries before the ring. A short prompt leaves some of them to generated tokens."""
    count = min(layout.live(seen), layout.protected)
    generated = torch.arange(min(held.shape[2], count), count, dtype=held.dtype) + layout.base - layout.protected
    return torch.cat((held[..., :count], generated.expand(*held.shape[:2], -1)), 2)


def _newest(held: Tensor, layout: Layout, seen: int) -> Tensor:
    """Return the tokens of the ring's entries, the oldest first."""
    count = max(0, layout.live(seen) - layout.protected)
    return torch.arange(seen - count, seen, dtype=held.dtype).expand(*held.shape[:2], -1)


def tokens_at(places: Tensor, cached: Cached, held: Tensor | None) -> Tensor:
    """Return int64 [L, H, n], which tokens of a prompt are at these places of its lane; below 0 for those below 0.

    cached: what the lane began with. held: int32 [L, H, m], the tokens of its first entries, which an earlier turn has
    left; None if they are not known, and then they are -1.
    """
    if not cached.gap:
        return places
    early = torch.full_like(places, -1) if held is None else _looked_up(held.to(places), places)
    later = torch.where(places < cached.entries, early, places + cached.gap)
    return torch.where(places < 0, places, later)


def _looked_up(held: Tensor, places: Tensor) -> Tensor:
    return held.gather(2, places.clamp(0, held.shape[2] - 1))
