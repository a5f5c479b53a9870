"""Turns: the engine's side of the prefix store. Lanes are loaded from it; prompts and ended requests are saved."""

from collections.abc import Callable

import torch
from torch import Tensor

from ringkv.base.engine import Cached
from ringkv.base.kv import BLOCK, KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.cache.compress.unequal_heads import missing
from ringkv.cache.rows import CacheRow
from ringkv.cache.store import prefixes
from ringkv.cache.store.conversations import ConversationHit, Conversations, SavedConversation
from ringkv.cache.store.pool import Pool
from ringkv.cache.store.prefixes import Prefixes
from ringkv.engine.held_tokens import Inserted, at_end, before_ring
from ringkv.engine.staging import Start

_NOTHING = Inserted()
ReadSlot = Callable[[], CacheRow]
"""Returns a slot's memory. It is called only if the slot is saved: several ranks may have to copy it first."""


class Turns:
    """Loads lanes from `cache.store` and saves to it.

    window: last tokens of a prompt that are always prefilled, because their queries select what is kept.
    """

    def __init__(self, pool: Pool, window: int) -> None:
        self.bytes = pool.bytes
        self._prefixes, self._conversations = Prefixes(pool), Conversations(pool)
        self._window = window

    def begin(self, request: Request, choice: KVChoice | None, room: int, lane: Callable[[int], CacheRow]) -> Start:
        """Begin a prompt's lane of `room` entries with its longest cached prefix; with nothing if choice is None.

        The last tokens of a lane that will be compacted are prefilled too.

        lane: begins it with so many entries, which are loaded next, and returns it.
        """
        if not self.bytes or choice is None:
            lane(0)
            return Start()
        blocks = max(0, min(len(request.tokens), room) - self._window) // BLOCK
        known = list(self._prefixes.cached(prefixes.block_hashes(request.tokens, request.salt)[:blocks]))
        tokens = len(known) * BLOCK
        found = self._found(request, choice, room)
        if found and found.tokens > tokens:
            earlier = self._conversations.load(found, lane(found.entries))
            cached = Cached(found.tokens, found.entries)
            return Start(cached, False, earlier, found.held, found.begins, found.votes)
        self._prefixes.load(known, lane(tokens))
        return Start(Cached(tokens, tokens))

    def staged(self, request: Request, start: int, stop: int, lane: CacheRow) -> None:
        """Save tokens start .. stop-1 of a prompt. They and all tokens before them have an entry each in the lane."""
        if self.bytes:
            self._prefixes.save(prefixes.block_hashes(request.tokens, request.salt), start, stop, lane)

    def left(
        self,
        request: Request,
        choice: KVChoice,
        tokens: tuple[int, ...],
        layouts: Layouts,
        slot: ReadSlot,
        inserted: Inserted = _NOTHING,
    ) -> None:
        """Save the slot of a request that has ended and has seen `tokens`. A selector's votes last if it needs them."""
        prompt, seen, layout = len(request.tokens), len(tokens), layouts[0]
        if not (self.bytes and _continues(choice)) or any(end > prompt for _, end in choice.protect):
            return
        if choice.keeps_votes and layout.evicted(seen) and not inserted.votes:
            return  # some tokens cannot be prefilled again, and have no votes
        row, live = slot(), layout.live(seen)
        fixed = min(live, layout.protected)
        begins = [_begins(body.lengths(row.at, live)) for body in row.bodies]
        held = at_end(inserted.held, layout, seen, begins)
        votes = before_ring(inserted.votes, layout, seen, begins)
        saved = SavedConversation(
            request.salt, choice, tokens, prompt, live + missing(begins[0]), live - fixed, held, begins, votes
        )
        body = row.bodies[0]  # the only one, if heads divide the slots
        order = torch.tensor(layout.by_age(seen), device=body.device)
        self._conversations.save(saved, row, body.in_order(row.at, order, fixed))

    def _found(self, request: Request, choice: KVChoice, room: int) -> ConversationHit | None:
        """Return the conversation that the prompt continues, if both fit into a lane."""
        found = self._conversations.find(request.salt, choice, request.tokens) if _continues(choice) else None
        if found is None or found.entries + len(request.tokens) - found.tokens > room:
            return None
        return found


def _continues(choice: KVChoice) -> bool:
    """Return whether a later turn may continue from this choice's slot: protected tokens are first in every head."""
    leading = choice.protect == () or (len(choice.protect) == 1 and choice.protect[0][0] == 0)
    return choice.turns == "continue" and leading


def _begins(lengths: Tensor | None) -> Tensor | None:
    """Return the first entry of each head, int64 [L, H], if all end together; None if all have the same number."""
    if lengths is None or bool((lengths == lengths[0, 0]).all()):
        return None
    return lengths.max() - lengths
