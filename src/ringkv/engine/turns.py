"""Turns: what a prompt's lane begins with, out of host memory, and what prompts and slots leave there."""

from collections.abc import Sequence

import torch

from ringkv.base.cache_spec import LayerGroup, PlaneFormat
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK, KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.cache.body import CacheRow
from ringkv.cache.store import prefixes
from ringkv.cache.store.conversations import ConversationHit, Conversations, SavedConversation
from ringkv.cache.store.pool import Pool
from ringkv.cache.store.prefixes import Prefixes
from ringkv.engine.staging import Start


def check_turns(choice: KVChoice, groups: Sequence[LayerGroup], format: PlaneFormat = "plain") -> None:
    """Raise InvalidRequest for a choice that goes on with slots that are encoded, or whose groups hold other tokens."""
    if choice.turns == "continue" and format != "plain":
        raise InvalidRequest(
            f"kv_turns continue is not implemented for kv_format {format}; choose reread, or kv_format plain",
            "kv_turns",
        )
    if choice.turns == "continue" and len(groups) > 1:
        raise InvalidRequest(
            "kv_turns continue is not implemented for a model that has both global layers and layers with a sliding "
            f"window of {groups[-1].window}; choose reread",
            "kv_turns",
        )


class Turns:
    """The engine's side of `cache.store`.

    window: last tokens of a prompt that are read in any case: their queries choose what is kept. margin: rows of the
    smallest prefill graph, which may run past a prompt's end.
    """

    def __init__(self, pool: Pool, window: int, margin: int) -> None:
        self.bytes = pool.bytes
        self._prefixes, self._conversations = Prefixes(pool), Conversations(pool)
        self._window, self._margin = window, margin

    def begin(self, request: Request, choice: KVChoice, lane: CacheRow) -> Start:
        """Fill a lane's first entries with what is known of a prompt, so that the least is to be read."""
        if not self.bytes:
            return Start()
        room = lane.entries
        blocks = max(0, len(request.tokens) - self._window) // BLOCK
        known = list(self._prefixes.cached(prefixes.block_hashes(request.tokens, request.salt)[:blocks]))
        while known and not self._fits(len(known) * BLOCK, len(request.tokens), room):
            known.pop()
        tokens = len(known) * BLOCK
        found = self._found(request, choice, room)
        if found and found.tokens > tokens:
            self._conversations.load(found, lane)
            return Start(found.tokens, found.entries, is_dense=False)
        self._prefixes.load(known, lane)
        return Start(tokens, tokens)

    def staged(self, request: Request, start: int, stop: int, lane: CacheRow) -> None:
        """Tokens start .. stop-1 of a prompt are in its lane, and all before them, an entry each."""
        if self.bytes:
            self._prefixes.save(prefixes.block_hashes(request.tokens, request.salt), start, stop, lane)

    def left(
        self, request: Request, choice: KVChoice, tokens: tuple[int, ...], layouts: Layouts, slot: CacheRow
    ) -> None:
        """A request ended that had seen `tokens`; its slot is as it left it."""
        prompt = len(request.tokens)
        if not (self.bytes and _continues(choice)) or any(end > prompt for _, end in choice.protect):
            return
        (layout,) = layouts
        order = torch.tensor(layout.by_age(len(tokens)), device=slot.bodies[0].planes[0].device)
        newest = max(0, len(order) - layout.protected)
        saved = SavedConversation(request.salt, choice, tokens, prompt, len(order), newest)
        self._conversations.save(saved, slot, order)

    def _found(self, request: Request, choice: KVChoice, room: int) -> ConversationHit | None:
        """The conversation that the prompt goes on with, where the two fit into a lane."""
        found = self._conversations.find(request.salt, choice, request.tokens) if _continues(choice) else None
        if found is None or not self._fits(found.entries, found.entries + len(request.tokens) - found.tokens, room):
            return None
        return found

    def _fits(self, start: int, stop: int, room: int) -> bool:
        """Whether the pieces that read places start .. stop-1 of a lane end in it, the last one's padding included."""
        is_aligned = start % self._margin == 0  # as chunks and lanes are: the pieces then fill the lane at most
        return stop + (0 if is_aligned else self._margin) <= room


def _continues(choice: KVChoice) -> bool:
    """Protected tokens must stand first in every head, and a selector that reads the prompt again needs all of it."""
    leading = choice.protect == () or (len(choice.protect) == 1 and choice.protect[0][0] == 0)
    return choice.turns == "continue" and leading and not choice.select.prefills_twice
