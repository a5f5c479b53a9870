"""Conversations: the entries that were live when a request ended, for a prompt that goes on from there.

L layers, H key-value heads, D head_dim, m live entries in order of age: what the policy keeps for good, then the newest
tokens, an entry each. What had been evicted is not there, and no later turn brings it back.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.cache.store.pool import Pool


class _Name(NamedTuple):
    salt: str
    choice: KVChoice
    tokens: tuple[int, ...]  # all that were seen, held or not


class Held(NamedTuple):
    """What was left of a conversation: so many entries, of which the last `newest` hold its last tokens."""

    entries: int
    newest: int


class Found(NamedTuple):
    """A conversation that a prompt begins with: its first `tokens`, and the first `entries` of what was left."""

    name: _Name
    tokens: int
    entries: int


class Conversations:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[_Name, Held] = {}

    def save(
        self, salt: str, choice: KVChoice, tokens: tuple[int, ...], newest: int, keys: Tensor, values: Tensor
    ) -> None:
        """Copy keys, values [L, H, m, D], the entries left after `tokens`; the last `newest` hold the last of these."""
        name = _Name(salt, choice, tokens)
        self._pool.save(name, keys, values)
        self._known[name] = Held(keys.shape[2], newest)
        self._known = {name: held for name, held in self._known.items() if name in self._pool}

    def find(self, salt: str, choice: KVChoice, tokens: Sequence[int]) -> Found | None:
        """The longest conversation that a prompt goes on with; at least the prompt's last token is left to be read.

        A client may tell an answer differently than it was said: cut at a stop string, or encoded anew. What was said
        after that is dropped, which are the newest entries; what they had overwritten stays lost.
        """
        before = tokens[:-1]
        same = (name for name in self._known if (name.salt, name.choice) == (salt, choice) and name in self._pool)
        found = [one for name in same if (one := self._begins(name, before)) is not None]
        return max(found, key=lambda one: one.tokens, default=None)

    def load(self, found: Found, keys: Tensor, values: Tensor) -> None:
        """Fill the first entries of keys, values [L, H, n, D]."""
        self._pool.load(found.name, keys[:, :, : found.entries], values[:, :, : found.entries])

    def _begins(self, name: _Name, tokens: Sequence[int]) -> Found | None:
        held, common = self._known[name], _common(name.tokens, tokens)
        cut = len(name.tokens) - common
        return Found(name, common, held.entries - cut) if common and cut <= held.newest else None


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
