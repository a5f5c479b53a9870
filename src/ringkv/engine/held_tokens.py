"""held_tokens: which prompt tokens entries hold, from one turn of a conversation to the next, and their votes.

Tokens are known only of requests with `trace`, votes only of selectors whose votes last. L layers of a group, H
key-value heads, m entries.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.engine import Cached
from ringkv.base.kv import Layout
from ringkv.cache.compress.kept import EMPTY
from ringkv.cache.compress.unequal_heads import missing

Held = Sequence[Tensor]
"""Per group of layers int32 [L, H, m], the token of each entry; empty if it is not known."""


class Inserted(NamedTuple):
    """What is known of a slot's entries when its prompt was inserted, per group on the CPU; empty if it is not known.

    held: int32 [L, H, m]. votes: float32 [L, H, m].
    """

    held: Held = ()
    votes: Sequence[Tensor] = ()


def at_end(held: Held, layout: Layout, seen: int, begins: Sequence[Tensor | None]) -> Held:
    """Return the tokens of a slot's live entries in the order of `Layout.by_age`, once so many were seen.

    held: those of its entries when the prompt was inserted. begins: see `SavedConversation`.
    """
    fixed = before_ring(held, layout, seen, begins)
    return tuple(torch.cat((own, _newest(own, layout, seen)), 2) for own in fixed)


def before_ring(
    inserted: Sequence[Tensor], layout: Layout, seen: int, begins: Sequence[Tensor | None]
) -> Sequence[Tensor]:
    """Return what was known of a slot's entries [L, H, m] for those before the ring. All heads end together."""
    each = zip(inserted, begins if inserted else (), strict=True)
    return tuple(_fixed(own, layout, seen) if at is None else _ending(own, layout, at) for own, at in each)


def _ending(inserted: Tensor, layout: Layout, begins: Tensor) -> Tensor:
    """Return [L, H, n] of heads that have n - `begins` entries before the ring, EMPTY before their first."""
    places = torch.arange(layout.protected + missing(begins)) - begins[..., None]
    return torch.where(places < 0, EMPTY, inserted.gather(2, places.clamp(min=0)))


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
    if not cached.gap and held is None:
        return places
    early = torch.full_like(places, -1) if held is None else _looked_up(held.to(places), places)
    later = torch.where(places < cached.entries, early, places + cached.gap)
    return torch.where(places < 0, places, later)


def _looked_up(held: Tensor, places: Tensor) -> Tensor:
    return held.gather(2, places.clamp(0, held.shape[2] - 1))
