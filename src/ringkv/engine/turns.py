"""Turns: the engine's side of the prefix store. Lanes are loaded from it; prompts and ended requests are saved.

L layers of a group, H key-value heads, m entries.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Cached
from ringkv.base.kv import BLOCK, KVChoice, Layout, Layouts
from ringkv.base.request import Request
from ringkv.cache.compress.kept import EMPTY
from ringkv.cache.compress.unequal_heads import missing
from ringkv.cache.earlier import Earlier
from ringkv.cache.rows import CacheRow
from ringkv.cache.store import prefixes
from ringkv.cache.store.conversations import Conversations, Known, SavedConversation
from ringkv.cache.store.pool import Pool
from ringkv.cache.store.prefixes import Prefixes
from ringkv.models.base import ModelConfig


class Loaded(NamedTuple):
    """What a lane begins with. is_dense: each cached token has an entry, at its own place.

    earlier: by group and plane, the encoded entries among them. known: what is known of the entries that a conversation
    left.
    """

    cached: Cached = Cached()
    is_dense: bool = True
    earlier: Sequence[Sequence[Earlier]] = ()
    known: Known = Known()

    @property
    def missing(self) -> int:
        """Entries that heads have less, on average, than the one with the most."""
        return missing(self.known.begins[0] if self.known.begins else None)


class Turns:
    """Loads lanes from `cache.store` and saves to it.

    The last tokens of a prompt are always prefilled, because their queries select what is kept.
    """

    def __init__(self, config: EngineConfig, model: ModelConfig, like: Tensor) -> None:
        parts = (model, replace(model, rank=config.rank.largest))
        own, most = (BLOCK * sum(group.token_bytes(like.element_size()) for group in part.groups) for part in parts)
        # All ranks store as many tokens.
        pool = Pool(config.store_bytes // config.rank.count // most * own, model.groups, like)
        self.bytes, self._window = pool.bytes, config.kv.window
        self._prefixes, self._conversations = Prefixes(pool), Conversations(pool)
        self.known: dict[int, Known] = {}  # what is known of the entries of slots whose next turn may continue

    def begin(self, request: Request, choice: KVChoice | None, room: int, lane: Callable[[int], CacheRow]) -> Loaded:
        """Begin a prompt's lane of `room` entries with its longest cached prefix; with nothing if choice is None.

        The last tokens of a lane that will be compacted are prefilled too.

        lane: begins it with so many entries, which are loaded next, and returns it.
        """
        if not self.bytes or choice is None:
            lane(0)
            return Loaded()
        blocks = max(0, min(len(request.tokens), room) - self._window) // BLOCK
        stored = self._prefixes.cached(prefixes.block_hashes(request.tokens, request.salt)[:blocks])
        tokens = len(stored) * BLOCK
        hit = self._conversations.find(request.salt, choice, request.tokens) if _continues(choice) else None
        if hit and hit.tokens > tokens and hit.entries + len(request.tokens) - hit.tokens <= room:  # both fit
            earlier = self._conversations.load(hit, lane(hit.entries))
            return Loaded(Cached(hit.tokens, hit.entries), False, earlier, hit.known)
        self._prefixes.load(stored, lane(tokens))
        return Loaded(Cached(tokens, tokens))

    def staged(self, request: Request, start: int, stop: int, lane: CacheRow) -> None:
        """Save tokens start .. stop-1 of a prompt. They and all tokens before them have an entry each in the lane."""
        if self.bytes:
            self._prefixes.save(prefixes.block_hashes(request.tokens, request.salt), start, stop, lane)

    def save(
        self,
        slot: int,
        request: Request,
        choice: KVChoice,
        tokens: tuple[int, ...],
        layouts: Layouts,
        read: Callable[[], CacheRow],
    ) -> None:
        """Save the slot of a request that has ended and has seen `tokens`. A selector's votes last if it needs them.

        read: returns the slot's memory. It is called only if the slot is saved: several ranks may have to copy it.
        """
        prompt, seen, layout = len(request.tokens), len(tokens), layouts[0]
        if not (self.bytes and _continues(choice)) or any(end > prompt for _, end in choice.protect):
            return
        known = self.known.get(slot, Known())
        if choice.keeps_votes and layout.evicted(seen) and not known.votes:
            return  # some tokens cannot be prefilled again, and have no votes
        memory, live = read(), layout.live(seen)
        fixed = min(live, layout.protected)
        begins = [_begins(body.lengths(memory.row, live)) for body in memory.bodies]
        entries, newest = live + missing(begins[0]), live - fixed
        known = _at_end(known, layout, seen, begins)
        saved = SavedConversation(request.salt, choice, tokens, prompt, entries, newest, known)
        body = memory.bodies[0]  # the only one, if heads divide the slots
        order = torch.tensor(layout.by_age(seen), device=body.device)
        self._conversations.save(saved, memory, body.in_order(memory.row, order, fixed))


def _continues(choice: KVChoice) -> bool:
    """Return whether a later turn may continue from this choice's slot: protected tokens are first in every head."""
    leading = choice.protect == () or (len(choice.protect) == 1 and choice.protect[0][0] == 0)
    return choice.turns == "continue" and leading


def _begins(lengths: Tensor | None) -> Tensor | None:
    """Return the first entry of each head, int64 [L, H], if all end together, or None if all have the same number."""
    if lengths is None or bool((lengths == lengths[0, 0]).all()):
        return None
    return lengths.max() - lengths


def _at_end(inserted: Known, layout: Layout, seen: int, begins: Sequence[Tensor | None]) -> Known:
    """Return what is known of a slot's live entries in the order of `Layout.by_age`, once so many tokens were seen.

    inserted: of its entries when the prompt was inserted. begins: see `Known`.
    """
    newest = torch.arange(seen - max(0, layout.live(seen) - layout.protected), seen, dtype=torch.int32)
    tokens = [
        torch.cat((before, newest.expand(*before.shape[:2], -1)), 2)
        for before in _before_ring(inserted.tokens, layout, seen, begins)
    ]
    return Known(tokens, _before_ring(inserted.votes, layout, seen, begins), begins)


def _before_ring(
    inserted: Sequence[Tensor], layout: Layout, seen: int, begins: Sequence[Tensor | None]
) -> list[Tensor]:
    """Return what was known of a slot's entries [L, H, m] for those before the ring. All heads end together."""
    each = zip(inserted, begins if inserted else (), strict=True)
    return [_fixed(entries, layout, seen) if b is None else _ending(entries, layout, b) for entries, b in each]


def _ending(inserted: Tensor, layout: Layout, begins: Tensor) -> Tensor:
    """Return [L, H, n] of heads that have n - `begins` entries before the ring, EMPTY before their first."""
    places = torch.arange(layout.protected + missing(begins)) - begins[..., None]
    return torch.where(places < 0, EMPTY, inserted.gather(2, places.clamp(min=0)))


def _fixed(inserted: Tensor, layout: Layout, seen: int) -> Tensor:
    """Return the tokens of the entries before the ring. A short prompt leaves some of them to generated tokens."""
    count = min(layout.live(seen), layout.protected)
    generated = torch.arange(min(inserted.shape[2], count), count, dtype=inserted.dtype)
    later = (generated + layout.base - layout.protected).expand(*inserted.shape[:2], -1)
    return torch.cat((inserted[..., :count], later), 2)


def tokens_at(places: Tensor, cached: Cached, held: Tensor | None) -> Tensor:
    """Return int64 [L, H, n], which tokens of a prompt are at these places of its lane; below 0 for those below 0.

    cached: what the lane began with. held: int32 [L, H, m], the tokens of its first entries, which an earlier turn has
    left, or None if they are not known, and then they are -1.
    """
    if not cached.gap and held is None:
        return places
    early = -1 if held is None else held.to(places).gather(2, places.clamp(0, held.shape[2] - 1))
    return torch.where(places < 0, places, torch.where(places < cached.entries, early, places + cached.gap))
