"""Conversations: the entries that were live when a request ended, for a prompt that continues from there.

The m live entries are in order of age: those that the policy never evicts, then the newest tokens, one entry each.
Entries of encoded slots are saved as they are. Evicted tokens are not saved, and no later turn brings them back.

L layers of a group, H key-value heads. If heads divide a slot, m are the entries of the longest head. Shorter ones
begin later, so that all end together.
"""

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import NamedTuple

from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.cache.earlier import Earlier
from ringkv.cache.rows import CacheRow
from ringkv.cache.store.pool import Pool

KNOWN = 8  # conversations of which it is known which tokens their entries hold


class SavedConversation(NamedTuple):
    """The saved entries of a request that had seen `tokens`. The first `prompt` of these were its prompt.

    entries: m, how many were saved. newest: how many of them hold the last tokens. held: per group of layers int32
    [L, H, m], which tokens they hold; empty if that is not known. begins: per group int64 [L, H], the first entry of
    each head; None if all begin at 0. votes: per group float32 [L, H, m - newest], what the selector gave the others if
    its votes last; else empty.
    """

    salt: str
    choice: KVChoice
    tokens: tuple[int, ...]
    prompt: int
    entries: int
    newest: int
    held: Sequence[Tensor] = ()
    begins: Sequence[Tensor | None] = ()
    votes: Sequence[Tensor] = ()


class ConversationHit(NamedTuple):
    """A saved conversation that a prompt continues: its first `tokens`, its first `entries`, and what is known of them.

    held, begins, votes: see `SavedConversation`.
    """

    name: Hashable
    tokens: int
    entries: int
    held: Sequence[Tensor] = ()
    begins: Sequence[Tensor | None] = ()
    votes: Sequence[Tensor] = ()


class Conversations:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._saved: dict[Hashable, SavedConversation] = {}

    def save(self, conversation: SavedConversation, slot: CacheRow, order: Tensor) -> None:
        """Save a slot's entries in this order: int64 [m], places in its planes."""
        key = conversation.salt, conversation.choice, conversation.tokens
        name = blake2b(repr(key).encode(), digest_size=32).digest()
        if self._pool.save(name, slot, order):
            self._saved[name] = conversation
        self._saved = {name: saved for name, saved in self._saved.items() if name in self._pool}
        for older in [name for name, saved in self._saved.items() if saved.held][:-KNOWN]:
            self._saved[older] = self._saved[older]._replace(held=())

    def find(self, salt: str, choice: KVChoice, tokens: tuple[int, ...]) -> ConversationHit | None:
        """Return the longest conversation that a prompt continues; at least the prompt's last token is prefilled.

        A client may send an answer back that differs: cut at a stop string, or tokenised anew. Entries after the first
        difference are dropped; older entries that these had overwritten stay evicted.
        """
        cached = ((name, saved) for name, saved in self._saved.items() if name in self._pool)
        same = ((name, saved) for name, saved in cached if (saved.salt, saved.choice) == (salt, choice))
        hits = [hit for name, saved in same if (hit := _match(name, saved, tokens[:-1])) is not None]
        return max(hits, key=lambda hit: hit.tokens, default=None)

    def load(self, hit: ConversationHit, lane: CacheRow) -> tuple[Sequence[Earlier], ...]:
        """Copy the saved entries to the first entries of a lane. Returns what `CacheRow.fill` takes of such a lane."""
        return self._pool.load(hit.name, lane, 0, hit.entries)


def _match(name: Hashable, saved: SavedConversation, tokens: tuple[int, ...]) -> ConversationHit | None:
    """Only generated tokens may differ: another question about the same text is another conversation."""
    if tokens[: saved.prompt] != saved.tokens[: saved.prompt]:
        return None
    generated = zip(saved.tokens[saved.prompt :], tokens[saved.prompt :], strict=False)
    common = saved.prompt + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], generated))
    dropped = len(saved.tokens) - common
    if dropped > saved.newest:
        return None
    left = saved.entries - dropped
    held = tuple(own[..., :left] for own in saved.held)
    return ConversationHit(name, common, left, held, saved.begins, saved.votes)
