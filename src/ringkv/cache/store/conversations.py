"""Conversations: the entries that were live when a request ended, for a prompt that goes on from there.

The m live entries stand in order of age: what the policy keeps for good, then the newest
tokens, an entry each. What had been evicted is not there, and no later turn brings it back.
"""

from collections.abc import Hashable
from hashlib import blake2b
from itertools import takewhile
from typing import NamedTuple

from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.cache.body import Row
from ringkv.cache.store.pool import Pool


class Held(NamedTuple):
    """What is left of a conversation that had seen `tokens`, the first `prompt` of which were asked and not said.

    So many `entries`, the last `newest` of which hold its last tokens.
    """

    salt: str
    choice: KVChoice
    tokens: tuple[int, ...]
    prompt: int
    entries: int
    newest: int


class Found(NamedTuple):
    """A conversation that a prompt goes on with: its first `tokens`, and the first `entries` of what was left."""

    name: Hashable
    tokens: int
    entries: int


class Conversations:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[Hashable, Held] = {}

    def save(self, held: Held, slot: Row, order: Tensor) -> None:
        """Copy a slot's entries int64 [m] in this order: the ones that are left."""
        name = blake2b(repr((held.salt, held.choice, held.tokens)).encode(), digest_size=32).digest()
        if self._pool.save(name, slot, order):
            self._known[name] = held
        self._known = {name: held for name, held in self._known.items() if name in self._pool}

    def find(self, salt: str, choice: KVChoice, tokens: tuple[int, ...]) -> Found | None:
        """The longest conversation that a prompt goes on with; at least the prompt's last token is left to be read.

        A client may tell an answer differently than it was said: cut at a stop string, or encoded anew. The entries of
        what was said after that are dropped; older ones that these had overwritten stay lost.
        """
        known = ((name, held) for name, held in self._known.items() if name in self._pool)
        same = ((name, held) for name, held in known if (held.salt, held.choice) == (salt, choice))
        found = [one for name, held in same if (one := _goes_on(name, held, tokens[:-1])) is not None]
        return max(found, key=lambda one: one.tokens, default=None)

    def load(self, found: Found, lane: Row) -> None:
        """Fill the first entries of a lane."""
        self._pool.load(found.name, lane, 0, found.entries)


def _goes_on(name: Hashable, held: Held, tokens: tuple[int, ...]) -> Found | None:
    """Only what was said may be told differently: another question about the same text is another conversation."""
    if tokens[: held.prompt] != held.tokens[: held.prompt]:
        return None
    said = zip(held.tokens[held.prompt :], tokens[held.prompt :], strict=False)
    common = held.prompt + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], said))
    cut = len(held.tokens) - common
    return Found(name, common, held.entries - cut) if cut <= held.newest else None
