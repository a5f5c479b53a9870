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

TRACED = 8  # conversations of which it is known which tokens their entries hold


class Known(NamedTuple):
    """What is known of entries from one turn of a conversation to the next, per group of layers on the CPU.

    tokens: int32 [L, H, m], the token that each entry holds; empty if that is not known. votes: float32 [L, H, n], what
    the selector gave the entries that no token overwrites, if its votes last; else empty. begins: int64 [L, H], the
    first entry of each head, or None if all begin at 0.
    """

    tokens: Sequence[Tensor] = ()
    votes: Sequence[Tensor] = ()
    begins: Sequence[Tensor | None] = ()


class SavedConversation(NamedTuple):
    """The saved entries of a request that had seen `tokens`. The first `prompt` of these were its prompt.

    entries: m, how many were saved. newest: how many of them hold the last tokens.
    """

    salt: str
    choice: KVChoice
    tokens: tuple[int, ...]
    prompt: int
    entries: int
    newest: int
    known: Known = Known()


class ConversationHit(NamedTuple):
    """A saved conversation that a prompt continues: its first `tokens`, and its first `entries`."""

    name: Hashable
    tokens: int
    entries: int
    known: Known


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
        for older in [name for name, saved in self._saved.items() if saved.known.tokens][:-TRACED]:
            saved = self._saved[older]
            self._saved[older] = saved._replace(known=saved.known._replace(tokens=()))

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
    held = tuple(entries[..., :left] for entries in saved.known.tokens)
    return ConversationHit(name, common, left, saved.known._replace(tokens=held))
